"""Any process may die while episodes of many turns are under way: they go on from their tokens elsewhere.

How many tokens that costs
--------------------------
Tokens are those that the policy chose; an environment's replies cost nothing to be had again. An actor counts what it
writes, and what it held when it was killed is written + resumed - published - given up - handed on of its last
snapshot, which is at most half a second old: in that time it wrote on and published on alike, so the figure is off by
what its actor writes in half a second at most, to either side. Whatever of that no other actor resumed was lost.

``lost in the window`` of a victim: how much more than at its kill is neither published, nor given up, nor held, once
others had the time to take over. Below zero it says that a task is held by two actors: its owner lives, and its
heartbeats were not heard while the broker was away.
``lost over the run``, up to the last window: written in all lives of all actors, less what was finished by then and
in the end is in the ledger (each trajectory once, so that work done twice counts as lost), less what was given up, and
less what actors held. That book is kept by the store and not by the actors; it is off by the same half second for each
actor that was killed, and by what was finished and not yet published, some tens of milliseconds.
What became of trajectories afterwards is not in it: a learner that dies gives back what it trained since its
checkpoint, and some of that is too old by then; the audit counts it as dropped.
"""

import sys
import time
from collections.abc import Callable

import msgspec
import pytest

from tests.e2e.conftest import Run
from tests.e2e.killing import VICTIMS, assert_books_balance, kill_and_recover
from tests.e2e.token_books import TokenBooks, tokens_in_ledger

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(1200)]

# A task that waited for its redelivery is still inside of it, at about one version a second.
MAX_LAG = 16
# Without a heartbeat for that long a task goes to another actor.
ACK_WAIT_S = 3.0
KEEP_PROGRESS_S = 0.5
# Calculators that take their time make episodes of many half seconds, which is how often an actor tells what it wrote.
TOOL_LATENCY = "lognormal:1.5:0.4"
SETTINGS = (
    "actor.replicas=2",
    "actor.slots=256",
    f"actor.ack_wait_s={ACK_WAIT_S}",
    f"actor.keep_progress_s={KEEP_PROGRESS_S}",
    "actor.evaluation_problems_max=32",
    "environment.replicas=2",
    f"environment.tool_latency={TOOL_LATENCY}",
    "batch_size=64",
    "max_running=1024",
    f"staleness.max_lag={MAX_LAG}",
    "task_queue.evaluation_every_versions=50",
    "learner.checkpoint_every_steps=5",
)
# Of the tokens of the whole run: eight deaths in a few minutes, each far more often than a cluster sees one in a day.
LOST_SHARE_MAX = 0.02
# An actor is killed while it holds far more than it writes in half a second, so that its figures say what it held.
HELD_MIN = 1000
# What it wrote since it last told the broker is gone, and what it held is known to half a second: mostly 75-95 % go on.
RESUMED_SHARE_MIN = 0.5
# Far above what a machine of two cores takes that is busy with other things too.
TIMEOUT_S = 400.0
# Its death is the one that the run's target waits for, so that no window is cut short by the end of the run.
LAST_VICTIM = "environment-1"


class Window(msgspec.Struct, frozen=True):
    """What one kill cost. ``held``: tokens that the victim held; ``written``: by all actors in its window."""

    victim: str
    back_s: float
    trains_s: float
    held: float
    resumed: float
    rollouts_resumed: float
    rollouts_begun_anew: float
    lost: float
    written: float

    def __str__(self) -> str:
        """One line."""
        return (
            f"kill -9 {self.victim}: back after {self.back_s:.1f} s, trains on after {self.trains_s:.1f} s;"
            f" it held {self.held:.0f} tokens, {self.resumed:.0f} were resumed in {self.rollouts_resumed:.0f} tasks"
            f" ({self.rollouts_begun_anew:.0f} begun anew); lost {self.lost:.0f} of {self.written:.0f} written,"
            f" {self.lost / max(1.0, self.written):.2%}"
        )


def test_rollouts_go_on_from_their_tokens_after_kill_nine_of_every_process(
    start: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"restarts_total>={len(VICTIMS) + 1} and version_step>=20"
    settings = [argument for setting in SETTINGS for argument in ("--set", setting)]
    run = start("runs/calculator.yaml", "--until", target, "--for", "1000s", *settings)
    run.until(lambda: len(run.steps()) >= 10, timeout_s=TIMEOUT_S, what="training")
    with TokenBooks(run.folder).following() as books:
        run.until(lambda: books.held("actor-0") >= HELD_MIN, timeout_s=TIMEOUT_S, what="rollouts under way")
        windows: list[Window] = []
        for victim in VICTIMS:
            windows.append(kill_in_window(run, books, victim))
            with capsys.disabled():
                sys.stdout.write(f"\n  {windows[-1]}")
        totals = books.totals()
        run.kill(LAST_VICTIM)
        code, summary = run.wait(timeout_s=1100)
    arrived = tokens_in_ledger(run.folder, until_s=totals.at_s)
    lost = totals.written - totals.given_up - totals.held - arrived
    with capsys.disabled():
        sys.stdout.write(
            f"\n  over the run: {totals.written:.0f} tokens written, {totals.resumed:.0f} resumed,"
            f" {lost:.0f} lost, {lost / totals.written:.2%}; {totals.given_up:.0f} given up;"
            f" trajectories dropped afterwards: {summary['audit']['dropped']}"
        )
    assert code == 0, run.tail()
    assert summary["reached"]
    assert set(summary["restarts"]) >= set(VICTIMS)
    assert_books_balance(summary["audit"], max_lag=MAX_LAG)
    [of_actor] = [window for window in windows if window.victim == "actor-0"]
    assert of_actor.rollouts_resumed > 0, "others go on with what the dead actor began"
    assert of_actor.resumed >= RESUMED_SHARE_MIN * of_actor.held, of_actor
    assert lost <= LOST_SHARE_MAX * totals.written


def kill_in_window(run: Run, books: TokenBooks, victim: str) -> Window:
    """Kill it, and see what came of its tokens once others had the time to take over."""
    before, began_at_s = books.totals(), books.began_at_s(victim)
    held = books.held(victim) if victim.startswith("actor") else 0.0
    killed_at_s = time.monotonic()
    back_s, trains_s = kill_and_recover(run, victim)
    if held:
        run.until(
            lambda: books.began_at_s(victim) > began_at_s,
            timeout_s=TIMEOUT_S,
            what=f"figures of a new {victim}",
        )
        run.until(
            lambda: books.totals().resumed - before.resumed >= RESUMED_SHARE_MIN * held,
            timeout_s=TIMEOUT_S,
            what=f"{RESUMED_SHARE_MIN:.0%} of the {held:.0f} tokens resumed that {victim} held",
        )
    # A task that nobody speaks for goes to another actor in this time, and once more if that one asks too early.
    run.until(
        lambda: time.monotonic() - killed_at_s > 2.5 * ACK_WAIT_S, timeout_s=TIMEOUT_S, what="redeliveries"
    )
    after = books.totals()
    return Window(
        victim=victim,
        back_s=back_s,
        trains_s=trains_s,
        held=held,
        resumed=after.resumed - before.resumed,
        rollouts_resumed=after.rollouts_resumed - before.rollouts_resumed,
        rollouts_begun_anew=after.rollouts_begun_anew - before.rollouts_begun_anew,
        lost=after.missing - before.missing,
        written=after.written - before.written,
    )
