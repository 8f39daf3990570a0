"""A run whose actors refuse every task ends with their reason."""

import msgspec

from tidegate.catalogue import actor as actor_stats
from tidegate.launch.board import Board
from tidegate.launch.refusals import REFUSED_FOR_S, RefusalWatch
from tidegate.wire.stats import ServiceStats

REASON = "Environment 'X' needs the package box2d"


class Run:
    """Actors' reports over time."""

    def __init__(self) -> None:
        self.board = Board()
        self.watch = RefusalWatch()
        self.now_s = 100.0

    def report(
        self, index: int, *, refusal: str = "", busy: int = 0, made: int = 0, late_s: float = 0.0
    ) -> None:
        self.board.put(
            ServiceStats(
                service="actor",
                instance=f"actor-{index}",
                state="ready",
                at_s=self.now_s - late_s,
                started_at_s=1.0,
                values={actor_stats.BUSY_TASKS: busy, actor_stats.TRAJECTORIES: made},
                labels={actor_stats.TASK_REFUSAL: refusal},
            )
        )

    def ends(self) -> str:
        """The problem once it has lasted; empty if the run goes on."""
        first = self.watch.problem(self.board, now_s=self.now_s)
        assert first is None
        self.now_s += REFUSED_FOR_S
        for stats in list(self.board.latest().values()):
            if self.now_s - stats.at_s < 2 * REFUSED_FOR_S:
                self.board.put(msgspec.structs.replace(stats, at_s=self.now_s))
        found = self.watch.problem(self.board, now_s=self.now_s)
        return str(found) if found is not None else ""


def test_run_ends_when_the_only_actor_refuses() -> None:
    run = Run()
    run.report(0, refusal=REASON)
    assert run.ends().startswith(f"Every actor refuses its tasks. {REASON}.")


def test_run_ends_when_one_refuses_and_the_others_have_no_task() -> None:
    run = Run()
    run.report(0, refusal=REASON)
    run.report(1)
    assert REASON in run.ends()


def test_run_goes_on_while_another_actor_works_or_once_one_has_made_something() -> None:
    run = Run()
    run.report(0, refusal=REASON)
    run.report(1, busy=1)
    assert run.ends() == ""
    run = Run()
    run.report(0, refusal=REASON, made=1)
    assert run.ends() == ""
    assert Run().ends() == ""


def test_refusal_that_passes_is_forgotten() -> None:
    run = Run()
    run.report(0, refusal=REASON)
    assert run.watch.problem(run.board, now_s=run.now_s) is None
    run.report(0)
    assert run.watch.problem(run.board, now_s=run.now_s + 2.0) is None
    run.report(0, refusal=REASON)
    assert run.watch.problem(run.board, now_s=run.now_s + 2.5) is None
