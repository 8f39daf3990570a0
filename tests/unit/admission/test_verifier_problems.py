"""Failed verdicts as one sentence."""

from tidegate.admission.verifier_problems import VerifierProblems
from tidegate.catalogue import environment as environment_stats
from tidegate.wire.stats import ServiceStats


def report(service: str, reason: str) -> ServiceStats:
    labels = {str(environment_stats.VERIFIER_FAILURE): reason} if reason else {}
    return ServiceStats(service, "any-0", "ready", 1.0, 0.0, {}, labels)


def totals(verdicts: float, failures: float) -> dict[str, float]:
    return {environment_stats.VERDICTS: verdicts, environment_stats.VERIFIER_FAILURES: failures}


def test_share_and_reason_are_told_also_after_the_worker_that_reported_it() -> None:
    problems = VerifierProblems()
    problems.receive(report("environment", "own: TypeError at my_task.py:12 in score: no"))
    problems.receive(report("actor", "other"))
    problems.receive(report("environment", ""))
    sentence = problems.sentence(totals(1_000, 200))
    assert sentence.startswith(
        "20.0% of verdicts failed (200 of 1,000), most often own: TypeError at my_task.py:12 in score: no;"
    )
    assert "environment.on_error" in sentence


def test_nothing_is_said_without_a_failure() -> None:
    assert VerifierProblems().sentence(totals(1_000, 0)) == ""
    assert VerifierProblems().sentence({}) == ""
