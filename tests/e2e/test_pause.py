"""``tidegate pause`` and ``resume`` of a live run: what is in flight is trained, and the pause survives admission."""

from collections.abc import Callable

import pytest

from tests.e2e.conftest import START_TIMEOUT_S, Run

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_paused_run_trains_what_is_in_flight_survives_kills_and_trains_on_once_resumed(
    start: Callable[..., Run],
) -> None:
    run = start("runs/cartpole.yaml", "--until", "version_step>=1000000", "--for", "800s")
    run.until_trains(3)
    answer = run.tidegate("pause", "--reason", "a new disk", "--by", "ana")
    assert "by ana: a new disk; run `tidegate resume` to go on" in answer

    def is_still() -> bool:
        status = run.status()
        return (
            status["paused"].endswith("by ana: a new disk") and not status["values"]["running_trajectories"]
        )

    run.until(is_still, timeout_s=START_TIMEOUT_S, what="an empty loop")
    steps = len(run.steps())
    killed = run.kill("admission")
    run.until(
        lambda: run.pid("admission") not in (None, killed) and is_still(),
        timeout_s=START_TIMEOUT_S,
        what="a pause kept by another process of admission",
    )
    assert len(run.steps()) <= steps + 1, "the batch that was complete, at most"
    assert "run `tidegate resume`" in run.tidegate("explain")
    assert run.tidegate("resume") == "resumed\n"
    run.until_trains(steps + 5)
