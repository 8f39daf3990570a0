"""Tasks on an engine that writes tokens: many at once, cut, stopped and resumed, and nothing is lost."""

import asyncio
import time

import msgspec
import numpy as np
import pytest

from tests.support.clocks import wall_clock_s
from tests.unit.actor.episodes_harness import Echo, Harness, Notes, task_of
from tests.unit.actor.support import evaluation_task, version
from tidegate.actor.engines.port import Rollouts, Sample
from tidegate.actor.rollouts.heldout import HeldOutProblem
from tidegate.actor.rollouts.outcomes import DroppedTask, RefusedTask, RolloutResult
from tidegate.actor.state import Provenance, records_of
from tidegate.catalogue import actor as statistics
from tidegate.catalogue import inference_server as server_stats
from tidegate.core.cut_off import CUT_OFF
from tidegate.core.errors import BackpressureError, NotFoundError, UnavailableError
from tidegate.core.ids import RunId
from tidegate.core.records import StageTiming, Trajectory
from tidegate.runtime.config import LongTailConfig
from tidegate.wire.progress import decode_progress
from tidegate.wire.validate import validate_trajectory


def rollouts_of(made: RolloutResult | None) -> Rollouts:
    assert isinstance(made, Rollouts), made
    return made


def records(made: RolloutResult | None) -> list[Trajectory]:
    """The records that would be published, validated."""
    rollouts = rollouts_of(made)
    traces = [""] * len(rollouts.samples)
    found = records_of(rollouts, Provenance(actor_id="actor-0", taken_at_s=1.0), trace_parents=traces)
    for record in found:
        validate_trajectory(record, run_id=RunId("test-run"))
        assert isinstance(record.stages[-1], StageTiming)
    return found


def assert_same(ours: Sample, theirs: Sample, *, but: tuple[str, ...] = ()) -> None:
    for name in Sample.__struct_fields__:
        if name not in ("tensors", *but):
            assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in ours.tensors.items():
        np.testing.assert_array_equal(tensor, theirs.tensors[name], err_msg=name)


# -- one turn ----------------------------------------------------------------------------------------------------------


async def test_group_of_completions_ends_by_itself_or_at_its_cap() -> None:
    harness = Harness(stop_share=0.02)
    made = [rollouts_of(await harness.run(task_of(f"t-{number}", max_new_tokens=40))) for number in range(8)]
    reasons = set[str]()
    for rollouts in made:
        assert len(records(rollouts)) == 3
        for sample in rollouts.samples:
            reasons.add(sample.finish_reason)
            assert sample.finish_reason == ("length" if sample.num_steps == 40 else "stop")
            assert sample.reward is None
            assert "chosen" not in sample.tensors
            assert harness.engine.tokenizer.decode(sample.tensors["tokens"].tolist()) == sample.completion
    assert reasons == {"stop", "length"}
    assert harness.notes.num_published == 0, "what ends before it is kept is never written"


async def test_tasks_run_concurrently_and_each_is_published_when_done() -> None:
    harness = Harness(stop_share=0.0)
    harness.engine.hold_at = 20
    slow = asyncio.create_task(harness.run(task_of("t-slow", max_new_tokens=30)))
    quick = await harness.run(task_of("t-quick", max_new_tokens=10))
    assert rollouts_of(quick).samples[0].num_steps == 10
    assert not slow.done()
    harness.engine.hold_at = None
    assert rollouts_of(await slow).samples[0].num_steps == 30


async def test_engine_statistics_are_on_the_actors_board() -> None:
    harness = Harness()
    harness.control.figures[server_stats.PROBE_ERROR] = 0.07
    harness.drain.request()
    await harness.runner.account()
    assert harness.value(server_stats.PROBE_ERROR) == 0.07


async def test_as_many_tasks_run_as_fit_with_all_of_their_samples() -> None:
    assert Harness(num_samples=3, slots=16).runner.flows_max == 5
    assert Harness(num_samples=16, slots=4).runner.flows_max == 1, "the engine lets the others wait"
    assert Harness().runner.batch_max == 1


async def test_versions_of_tokens_are_those_that_were_served_when_they_were_written() -> None:
    harness = Harness(stop_share=0.0)
    running = await harness.run_until(task_of(max_new_tokens=30), 12)
    harness.publish(4)
    harness.engine.hold_at = None
    for record in records(await running):
        assert [(span.version, span.start, span.stop) for span in record.spans] == [
            (version(0), 0, 12),
            (version(4), 12, 30),
        ]


async def test_task_that_the_engine_cannot_write_is_refused() -> None:
    harness = Harness()
    made = await harness.run(task_of(max_new_tokens=0))
    assert isinstance(made, RefusedTask)


async def test_engine_that_lost_its_server_resumes_from_its_tokens() -> None:
    harness, calm = Harness(stop_share=0.0), Harness(stop_share=0.0)
    running = await harness.run_until(task_of(num_samples=1), 7)
    harness.engine.failures = 1
    harness.engine.hold_at = None
    [sample] = rollouts_of(await running).samples
    assert_same(sample, rollouts_of(await calm.run(task_of(num_samples=1))).samples[0])
    first, second = harness.engine.requests
    assert second.context[: len(first.context)] == first.context
    assert len(second.context) == len(first.context) + 7
    assert second.sampler.max_new_tokens == 53
    assert second.seed != first.seed, "a resumed place draws another number"
    assert harness.value(statistics.ENGINE_RETRIES) == 1


# -- cut, cap, early stop, latency -------------------------------------------------------------------------------------


async def test_task_that_exceeds_the_budget_is_cut_and_the_others_continue() -> None:
    harness = Harness(stop_share=0.0, long_tail=LongTailConfig(policy="cut"))  # max_lag 1
    old = await harness.run_until(task_of("t-old"), 9)
    harness.publish(1)
    harness.engine.hold_at = None
    harness.engine.token_s = 0.001
    new = asyncio.create_task(harness.run(task_of("t-new")))
    await asyncio.sleep(0)
    harness.engine.hold_at = 30
    harness.publish(2)
    while not harness.deadlines.marks:
        await asyncio.sleep(0.005)
        harness.deadlines.check()
    made = await old
    assert isinstance(made, DroppedTask)
    assert (made.by, made.reason, made.num_made) == ("cut", "stale", 3)
    assert made.length >= 9
    harness.engine.hold_at = None
    assert rollouts_of(await new)
    assert not harness.deadlines.marks
    assert not harness.control.cut


async def test_group_whose_first_samples_are_rewarded_alike_is_stopped_early_and_the_rest_never_written() -> (
    None
):
    worker = Echo(num_turns=1)
    long_tail = LongTailConfig(early_stop_after=2)
    harness = Harness(workers=[worker], turns_max=2, num_samples=6, long_tail=long_tail)
    made = await harness.run(task_of(num_samples=6))
    assert isinstance(made, DroppedTask)
    assert (made.by, made.reason, made.num_made) == ("settled", "settled", 2)
    assert len({request.request_id.partition("/")[0] for request in harness.engine.requests}) == 2


async def test_group_whose_first_rewards_differ_is_made_whole() -> None:
    class Moody(Echo):
        async def step(self, session_id: str, *, action: str):  # type: ignore[no-untyped-def]  # as its parent
            step = await super().step(session_id, action=action)
            return msgspec.structs.replace(step, reward=float(len(self.steps)))

    harness = Harness(
        workers=[Moody(num_turns=1)], turns_max=2, num_samples=5, long_tail=LongTailConfig(early_stop_after=2)
    )
    rollouts = rollouts_of(await harness.run(task_of(num_samples=5)))
    assert len(records(rollouts)) == 5
    assert rollouts.task.num_samples == 5


async def test_cap_of_a_bin_is_applied_and_recorded() -> None:
    harness = Harness(long_tail=LongTailConfig(cap_quantile=0.5), stop_share=0.1)
    for number in range(12):
        await harness.run(task_of(f"t-{number}"))
    rollouts = rollouts_of(await harness.run(task_of("t-last")))
    assert rollouts.task.sampler.max_new_tokens < 60
    assert max(sample.num_steps for sample in rollouts.samples) <= rollouts.task.sampler.max_new_tokens


async def test_rollout_takes_the_time_of_its_workload() -> None:
    harness = Harness(latency="fixed:1.0")
    rollouts = rollouts_of(await harness.run(task_of()))
    assert rollouts.finished_at_s - rollouts.started_at_s >= wall_clock_s(1.0)
    waited_s = harness.value(statistics.WAIT_LATENCY_S)
    assert 0.0 < waited_s < harness.value(statistics.BUSY_S), "the wait counts as work, beside the tokens"


async def test_work_of_several_tasks_at_once_is_counted_once() -> None:
    harness = Harness(latency="fixed:1.0")
    started_s = time.monotonic()
    await asyncio.gather(*(harness.run(task_of(f"t-{number}")) for number in range(6)))
    assert 0.5 <= harness.value(statistics.BUSY_S) <= time.monotonic() - started_s


# -- stopped and resumed -----------------------------------------------------------------------------------------------


async def stopped(harness: Harness, running: "asyncio.Task[RolloutResult | None]") -> None:
    """The actor drains: running tasks have no result."""
    harness.runner.stop()
    assert await running is None


@pytest.mark.parametrize("num_tokens", [1, 13, 59])
async def test_drained_rollout_resumes_elsewhere_and_equals_an_undisturbed_one(num_tokens: int) -> None:
    notes, task = Notes(), task_of()
    first = Harness(notes=notes, stop_share=0.0)
    await stopped(first, await first.run_until(task, num_tokens))
    assert notes.num_published == 1
    second = Harness(notes=notes, stop_share=0.0)
    made = rollouts_of(await second.run(task))
    undisturbed = rollouts_of(await Harness(stop_share=0.0).run(task))
    for ours, theirs in zip(made.samples, undisturbed.samples, strict=True):
        assert_same(ours, theirs)
    records(made)
    assert second.value(statistics.TOKENS_RESUMED) == 3 * num_tokens
    assert second.value(statistics.TOKENS_LOST) == 0
    written = sum(60 - request.sampler.max_new_tokens for request in second.engine.requests)
    assert written == 3 * num_tokens, "no token is written twice"


async def test_resumed_tokens_keep_their_versions_and_the_age_of_the_first() -> None:
    notes, task = Notes(), task_of()
    first = Harness(notes=notes, stop_share=0.0)
    running = await first.run_until(task, 5)
    first.publish(1)
    first.engine.hold_at = 8
    first.engine.held.clear()
    while len(first.engine.held) < 3:
        await asyncio.sleep(0.001)
    await stopped(first, running)
    began_at_s = decode_progress(next(iter(notes.last_of.values())).data).started_at_s
    second = Harness(notes=notes, stop_share=0.0, policy_step=1)
    made = rollouts_of(await second.run(task))
    for record in records(made):
        edges = [(span.version.step, span.start, span.stop) for span in record.spans]
        assert edges == [(0, 0, 5), (1, 5, 60)]
    assert made.started_at_s == began_at_s


async def test_samples_that_were_done_are_not_written_again() -> None:
    notes, task = Notes(), task_of(num_samples=8)
    first = Harness(notes=notes, num_samples=8, stop_share=0.1)
    first.engine.hold_at = 12
    running = asyncio.create_task(first.run(task))
    while len(first.engine.held) + len(first.engine.ended) < 8:
        await asyncio.sleep(0.001)
    ended = len(first.engine.ended)
    assert 0 < ended < 8
    await stopped(first, running)
    second = Harness(notes=notes, num_samples=8, stop_share=0.1)
    made = rollouts_of(await second.run(task))
    undisturbed = rollouts_of(await Harness(num_samples=8, stop_share=0.1).run(task))
    for ours, theirs in zip(made.samples, undisturbed.samples, strict=True):
        assert_same(ours, theirs)
    assert len(second.engine.requests) == 8 - ended


async def test_progress_beyond_the_budget_restarts_and_is_counted() -> None:
    notes, task = Notes(), task_of()
    first = Harness(notes=notes, stop_share=0.0)
    await stopped(first, await first.run_until(task, 10))
    second = Harness(notes=notes, stop_share=0.0, policy_step=2)  # max_lag 1
    made = rollouts_of(await second.run(task))
    assert {span.version for sample in made.samples for span in sample.spans} == {version(2)}
    assert second.value(statistics.TOKENS_RESUMED) == 0
    assert second.value(statistics.TOKENS_LOST) == 30
    assert second.value(statistics.ROLLOUTS_RESTARTED) == 1


async def test_progress_of_another_attempt_or_in_pieces_is_refused_and_counted() -> None:
    notes, task = Notes(), task_of()
    first = Harness(notes=notes, stop_share=0.0)
    await stopped(first, await first.run_until(task, 10))
    second = Harness(notes=notes, stop_share=0.0)
    rollouts_of(await second.run(msgspec.structs.replace(task, attempt=2)))
    assert second.value(statistics.PROGRESS_REFUSED) == 1
    assert second.value(statistics.TOKENS_RESUMED) == 0


async def test_broker_that_is_away_costs_tokens_and_no_rollout() -> None:
    notes = Notes()
    notes.away = True
    harness = Harness(notes=notes, stop_share=0.0)
    rollouts_of(await harness.run(task_of()))
    assert harness.value(statistics.PROGRESS_UNREAD) == 1
    running = await harness.run_until(task_of("t-2"), 4)
    await stopped(harness, running)
    assert harness.value(statistics.PROGRESS_NOT_KEPT) == 1


async def test_running_groups_are_checkpointed_and_cleared_when_done() -> None:
    harness = Harness(stop_share=0.0)
    keeping = asyncio.create_task(harness.checkpoints.run())
    task = task_of()
    running = await harness.run_until(task, 10)
    while not harness.notes.last_of:
        await asyncio.sleep(0.01)
    num_published = harness.notes.num_published
    await asyncio.sleep(0.2)
    assert harness.notes.num_published == num_published, "nothing new, nothing written"
    harness.engine.hold_at = None
    rollouts_of(await running)
    assert await harness.checkpoints.find(task) is not None
    await harness.checkpoints.forget(task.task_id)
    assert await harness.checkpoints.find(task) is None
    harness.drain.request()
    async with asyncio.timeout(60.0):
        await keeping


# -- several turns -----------------------------------------------------------------------------------------------------


async def test_episode_is_turns_and_replies_with_the_reward_of_its_session() -> None:
    worker = Echo(num_turns=3)
    harness = Harness(workers=[worker], turns_max=5)
    made = rollouts_of(await harness.run(task_of(num_samples=3, max_new_tokens=1000)))
    tokenizer = harness.engine.tokenizer
    for record, sample in zip(records(made), made.samples, strict=True):
        assert record.finish_reason == "stop"
        assert record.reward == 1.5
        assert record.reward_components == {"right": 1.0}
        assert record.verifier_log == "all said"
        assert [call.name for call in record.tool_calls] == ["echo"] * 3
        chosen, tokens = sample.tensors["chosen"], sample.tensors["tokens"]
        assert record.num_steps == int(chosen.sum()) < len(tokens)
        assert (sample.tensors["behavior_logprobs"][~chosen] == 0.0).all()
        assert (sample.tensors["behavior_logprobs"][chosen] < 0.0).all()
        replies = tokenizer.decode(tokens[~chosen].tolist())
        assert replies == "you said 1 timesyou said 2 times"
        assert "you said 2 times" in record.completion
    assert not worker.sessions, "each session was ended"
    assert harness.value(statistics.SESSIONS_OPENED) == 3


async def test_each_turn_reads_the_whole_context() -> None:
    harness = Harness(workers=[Echo(num_turns=2)], turns_max=5, num_samples=1)
    [sample] = rollouts_of(await harness.run(task_of(num_samples=1, max_new_tokens=1000))).samples
    _, second = harness.engine.requests
    stop = int(np.flatnonzero(~sample.tensors["chosen"])[-1]) + 1
    everything = [*sample.tensors["prompt_tokens"], *sample.tensors["tokens"][:stop]]
    assert list(second.context) == everything


async def test_opening_of_the_session_is_what_the_policy_reads_first() -> None:
    harness = Harness(workers=[Echo(opening="a door.")], turns_max=5, num_samples=1)
    [sample] = rollouts_of(await harness.run(task_of(num_samples=1, max_new_tokens=500))).samples
    assert sample.tensors["prompt_tokens"].tolist() == harness.engine.tokenizer.encode_prompt("a door.")


@pytest.mark.parametrize(
    ("turns_max", "max_new_tokens", "context_length", "reason"),
    [(2, 1000, 4096, "turns"), (9, 8, 4096, "length"), (9, 1000, 40, "length")],
)
async def test_truncated_episode_reports_its_limit(
    turns_max: int, max_new_tokens: int, context_length: int, reason: str
) -> None:
    worker = Echo(num_turns=100)
    harness = Harness(
        workers=[worker],
        turns_max=turns_max,
        num_samples=2,
        stop_share=0.3,
        context_length=context_length,
    )
    made = rollouts_of(await harness.run(task_of(num_samples=2, max_new_tokens=max_new_tokens)))
    for record in records(made):
        assert record.finish_reason == reason
        assert record.reward is not None
        assert record.num_steps <= max_new_tokens
        assert len(record.tensors["tokens"]) + len(record.tensors["prompt_tokens"]) <= context_length
        assert CUT_OFF not in record.completion
    # The cap ends a turn; where the context is full it is the reply that has no room.
    assert any(step.endswith(CUT_OFF) for step in worker.steps) == (max_new_tokens == 8)


async def test_session_that_is_lost_is_opened_elsewhere_with_its_turns_replayed() -> None:
    first, second = Echo(), Echo()
    harness = Harness(workers=[first, second], turns_max=5, num_samples=1)
    undisturbed = rollouts_of(
        await Harness(workers=[Echo()], turns_max=5, num_samples=1).run(task_of(num_samples=1))
    )
    first.failing["step"] = [NotFoundError("gone")]
    second.failing["step"] = [UnavailableError("away")]
    made = rollouts_of(await harness.run(task_of(num_samples=1)))
    assert_same(made.samples[0], undisturbed.samples[0])
    assert harness.value(statistics.SESSIONS_LOST) == 2
    assert len(first.resets) + len(second.resets) == 3


async def test_worker_that_is_full_is_waited_for() -> None:
    full = Echo()
    full.slots = 0
    harness = Harness(workers=[full], turns_max=5, num_samples=1)
    running = asyncio.create_task(harness.run(task_of(num_samples=1)))
    while harness.value(statistics.SESSION_BACKPRESSURE) < 2:
        await asyncio.sleep(0.01)
    full.slots = 1
    rollouts_of(await running)
    assert harness.value(statistics.WAIT_SESSION_S) > 0


async def test_environment_whose_replay_differs_fails_the_task_and_is_counted() -> None:
    worker = Echo()
    harness = Harness(workers=[worker], turns_max=5, num_samples=1)

    async def moody_step(session_id: str, *, action: str):  # type: ignore[no-untyped-def]  # as the one it replaces
        if len(worker.steps) == 1 and not worker.failing["step"] and worker.voice == "you said ":
            worker.voice = "you mumbled "
            raise NotFoundError("gone")
        return await Echo.step(worker, session_id, action=action)

    worker.step = moody_step  # type: ignore[method-assign]  # this one worker only
    made = await harness.run(task_of(num_samples=1))
    assert isinstance(made, DroppedTask)
    assert (made.by, made.reason) == ("failed", "failed")
    assert "returned" in made.detail
    assert harness.value(statistics.EPISODES_FAILED) == 1


async def test_drained_episode_resumes_elsewhere_with_its_session() -> None:
    notes, task = Notes(), task_of(num_samples=2, max_new_tokens=400)
    workers = [Echo(num_turns=4)]
    undisturbed = rollouts_of(
        await Harness(workers=[Echo(num_turns=4)], turns_max=9, num_samples=2).run(task)
    )
    harness = Harness(notes=notes, workers=workers, turns_max=9, num_samples=2, token_s=0.001)
    running = asyncio.create_task(harness.run(task))
    while len(workers[0].steps) < 5:
        await asyncio.sleep(0.001)
    assert not running.done()
    await stopped(harness, running)
    assert not workers[0].sessions, "its sessions are free for others"
    second = Harness(notes=notes, workers=workers, turns_max=9, num_samples=2)
    made = rollouts_of(await second.run(task))
    for ours, theirs in zip(made.samples, undisturbed.samples, strict=True):
        assert_same(ours, theirs)
    records(made)
    assert second.value(statistics.TOKENS_RESUMED) > 0
    assert any(len(turns) >= 2 for turns in workers[0].resets), "the turns so far were replayed"


async def test_rollout_that_waits_for_a_session_is_stopped_like_any_other() -> None:
    full = Echo()
    full.failing["reset"] = [BackpressureError("full")] * 1000
    harness = Harness(workers=[full], turns_max=5)
    running = asyncio.create_task(harness.run(task_of()))
    while harness.value(statistics.SESSION_BACKPRESSURE) < 2:
        await asyncio.sleep(0.01)
    await stopped(harness, running)


# -- evaluation --------------------------------------------------------------------------------------------------------


PROBLEMS = [HeldOutProblem(f"p-{number}", f"{number}+1=", str(number + 1)) for number in range(20)]


async def test_evaluation_is_of_one_version_however_many_are_announced_meanwhile() -> None:
    harness = Harness(slots=4, token_s=0.0005)
    answering = asyncio.create_task(harness.runner.complete(evaluation_task(), PROBLEMS))
    while len(harness.engine.requests) < 6:
        await asyncio.sleep(0.001)
    harness.publish(3)
    assert harness.served_policy.version == version(0)
    completed = await answering
    assert completed.version == version(0)
    assert len(completed.completions) == 20
    assert completed.rewards is None
    assert harness.served_policy.version == version(3), "served as soon as the evaluation is over"


async def test_evaluation_of_episodes_brings_its_rewards() -> None:
    harness = Harness(workers=[Echo(num_turns=2)], turns_max=3)
    task = msgspec.structs.replace(evaluation_task(), sampler=task_of(max_new_tokens=500).sampler)
    completed = await harness.runner.complete(task, PROBLEMS[:5])
    assert completed.rewards == [1.25] * 5


async def test_evaluation_of_a_draining_actor_is_refused() -> None:
    harness = Harness()
    harness.engine.hold_at = 1
    answering = asyncio.create_task(harness.runner.complete(evaluation_task(), PROBLEMS))
    await asyncio.sleep(0.02)
    harness.runner.stop()
    with pytest.raises(UnavailableError):
        await answering
