"""Any process may die during episodes of many turns: another actor resumes them from their tokens.

How many tokens that costs
--------------------------
Tokens are those that the policy chose; an environment's replies are free to get again. An actor counts what it writes.
What it held when it was killed is written + resumed - published - dropped - released of its last snapshot, which is at
most half a second old: in that time it wrote and published alike, so the figure is off by what an actor writes in half
a second at most, to either side. What no other actor resumed of that was lost.

``lost in the window`` of a victim: the growth since its kill of what is neither published, nor dropped, nor held, once
other actors had the time to resume. Below zero, two actors hold a task: its owner lives, and its heartbeats did not
arrive while the broker was down.
``lost over the run``, up to the last window: written in all lives of all actors, less what was finished by then and is
in the ledger at the end (each trajectory once, so that work done twice counts as lost), less what was dropped, and less
what actors held. The ledger is the store's and not the actors'; the figure is off by the same half second for each
killed actor, and by what was finished and not yet published, some tens of milliseconds.
What happened to trajectories afterwards is not in it: when a learner dies, what it trained since its checkpoint becomes
available again, and some of that is too old by then; the audit counts it as dropped.
"""

import sys
import time
from collections.abc import Callable

import msgspec
import pytest

from tests.e2e.conftest import Run
from tests.e2e.killing import VICTIMS, assert_accounting_balances, kill_and_recover
from tests.e2e.token_accounting import TokenAccounting, tokens_in_ledger

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kill,
    pytest.mark.slow,
    pytest.mark.extended,
    pytest.mark.timeout(1200),
]

# A task that waited for its redelivery is still within this budget, at about one version a second.
MAX_LAG = 16
# The broker redelivers a task after this time without a heartbeat.
ACK_WAIT_S = 3.0
KEEP_PROGRESS_S = 0.5
# Slow calculators make episodes of many half seconds; an actor reports what it wrote every half second.
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
# What it wrote since its last checkpoint to the broker is lost, and what it held is known to half a second: mostly
# 75-95 % are resumed.
RESUMED_SHARE_MIN = 0.5
# Far above what a busy machine of two cores takes.
TIMEOUT_S = 400.0
# The run's target waits for this kill, so that the end of the run cuts no window short.
LAST_VICTIM = "environment-1"


class Window(msgspec.Struct, frozen=True):
    """What one kill cost. ``held``: tokens that the victim held; ``written``: by all actors in its window."""

    victim: str
    back_s: float
    trains_s: float
    held: float
    resumed: float
    rollouts_resumed: float
    rollouts_restarted: float
    lost: float
    written: float

    def __str__(self) -> str:
        """One line."""
        return (
            f"kill -9 {self.victim}: back after {self.back_s:.1f} s, trains on after {self.trains_s:.1f} s;"
            f" it held {self.held:.0f} tokens, {self.resumed:.0f} were resumed in {self.rollouts_resumed:.0f} tasks"
            f" ({self.rollouts_restarted:.0f} restarted); lost {self.lost:.0f} of {self.written:.0f} written,"
            f" {self.lost / max(1.0, self.written):.2%}"
        )


def test_rollouts_resume_from_their_tokens_after_kill_nine_of_every_process(
    start: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"restarts_total>={len(VICTIMS) + 1} and version_step>=20"
    settings = [argument for setting in SETTINGS for argument in ("--set", setting)]
    run = start("runs/calculator.yaml", "--until", target, "--for", "1000s", *settings)
    run.until(lambda: len(run.steps()) >= 10, timeout_s=TIMEOUT_S, what="training")
    with TokenAccounting(run.folder).following() as accounting:
        run.until(
            lambda: accounting.held("actor-0") >= HELD_MIN, timeout_s=TIMEOUT_S, what="running rollouts"
        )
        windows: list[Window] = []
        for victim in VICTIMS:
            windows.append(kill_in_window(run, accounting, victim))
            with capsys.disabled():
                sys.stdout.write(f"\n  {windows[-1]}")
        totals = accounting.totals()
        run.kill(LAST_VICTIM)
        code, summary = run.wait(timeout_s=1100)
    arrived = tokens_in_ledger(run.folder, until_s=totals.at_s)
    lost = totals.written - totals.dropped - totals.held - arrived
    with capsys.disabled():
        sys.stdout.write(
            f"\n  over the run: {totals.written:.0f} tokens written, {totals.resumed:.0f} resumed,"
            f" {lost:.0f} lost, {lost / totals.written:.2%}; {totals.dropped:.0f} dropped;"
            f" trajectories dropped afterwards: {summary['audit']['dropped']}"
        )
    assert code == 0, run.tail()
    assert summary["reached"]
    assert set(summary["restarts"]) >= set(VICTIMS)
    assert_accounting_balances(summary["audit"], max_lag=MAX_LAG)
    [of_actor] = [window for window in windows if window.victim == "actor-0"]
    assert of_actor.rollouts_resumed > 0, "other actors resume the dead actor's rollouts"
    assert of_actor.resumed >= RESUMED_SHARE_MIN * of_actor.held, of_actor
    assert lost <= LOST_SHARE_MAX * totals.written


def kill_in_window(run: Run, accounting: TokenAccounting, victim: str) -> Window:
    """Kill it, and measure what happened to its tokens once other actors had the time to resume."""
    before, started_at_s = accounting.totals(), accounting.started_at_s(victim)
    held = accounting.held(victim) if victim.startswith("actor") else 0.0
    killed_at_s = time.monotonic()
    back_s, trains_s = kill_and_recover(run, victim)
    if held:
        run.until(
            lambda: accounting.started_at_s(victim) > started_at_s,
            timeout_s=TIMEOUT_S,
            what=f"figures of a new {victim}",
        )
        run.until(
            lambda: accounting.totals().resumed - before.resumed >= RESUMED_SHARE_MIN * held,
            timeout_s=TIMEOUT_S,
            what=f"{RESUMED_SHARE_MIN:.0%} of the {held:.0f} tokens resumed that {victim} held",
        )
    # The broker redelivers a task without heartbeats in this time, and once more if an actor asks too early.
    run.until(
        lambda: time.monotonic() - killed_at_s > 2.5 * ACK_WAIT_S, timeout_s=TIMEOUT_S, what="redeliveries"
    )
    after = accounting.totals()
    return Window(
        victim=victim,
        back_s=back_s,
        trains_s=trains_s,
        held=held,
        resumed=after.resumed - before.resumed,
        rollouts_resumed=after.rollouts_resumed - before.rollouts_resumed,
        rollouts_restarted=after.rollouts_restarted - before.rollouts_restarted,
        lost=after.missing - before.missing,
        written=after.written - before.written,
    )
