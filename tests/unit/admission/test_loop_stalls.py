"""The sentence about event loops that stood still."""

from tidegate.admission.loop_stalls import LoopStalls
from tidegate.catalogue import process
from tidegate.wire.stats import ServiceStats


def report(instance: str, cpu_s: float, where: str = "") -> ServiceStats:
    service = instance.partition("-")[0]
    return ServiceStats(
        service,
        instance,
        "ready",
        1.0,
        0.0,
        {process.LOOP_STALL_CPU_S: cpu_s},
        {process.LOOP_STALL: where},
    )


def test_worst_instance_is_named_with_the_function_also_after_it_was_replaced() -> None:
    stalls = LoopStalls()
    stalls.receive(report("actor-0", 1.5, "tidegate.actor.policy.check_policy:40"))
    stalls.receive(report("learner", 34.0, "tidegate.wire.policy_payload.announce:29"))
    stalls.receive(report("learner", 0.0))
    sentence = stalls.sentence()
    assert sentence.startswith(
        "the event loop of learner computed for 34.0 s without a pause in tidegate.wire.policy_payload.announce:29:"
    )
    assert "event_loop_stalled" in sentence


def test_harmless_stalls_are_not_reported() -> None:
    stalls = LoopStalls()
    assert stalls.sentence() == ""
    stalls.receive(report("learner", 0.2, "tidegate.learner.loops.Learner._step:3"))
    assert stalls.sentence() == ""
