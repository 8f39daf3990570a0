import random

import pytest

from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.staleness import Lineage
from tidegate.learner.standby_hold import HELD_S_MAX, StandbyHold

ROOT, FORK = LineageName("0-root"), LineageName("1-fork")
TREE = (Lineage(ROOT), Lineage(FORK, parent=ROOT, fork_step=50))


def root(step: int) -> PolicyVersion:
    return PolicyVersion(ROOT, step)


def fork(step: int) -> PolicyVersion:
    return PolicyVersion(FORK, step)


def hold_of(known: PolicyVersion | None, *, newest: PolicyVersion | None = None) -> StandbyHold:
    hold = StandbyHold(marked=root(10))
    hold.asked(known, newest=newest or root(1000), now_s=0.0)
    return hold


@pytest.mark.parametrize(
    ("known", "oldest", "marked"),
    [
        (None, root(40), root(40)),
        (root(30), root(40), root(30)),
        (root(45), root(40), root(40)),
        (root(9), root(40), root(40)),
        (root(30), fork(60), root(30)),
        (root(55), fork(60), fork(60)),
        (PolicyVersion(LineageName("0-other"), 30), root(40), root(40)),
    ],
    ids=["no standby", "older", "newer", "payloads are gone", "before the fork", "abandoned", "unknown"],
)
def test_payloads_stay_for_a_checkpoint_that_is_older_and_of_this_branch(
    known: PolicyVersion | None, oldest: PolicyVersion, marked: PolicyVersion
) -> None:
    assert hold_of(known).mark(oldest, TREE, now_s=1.0) == marked


def test_first_checkpoint_of_a_life_holds_nothing_back() -> None:
    hold = StandbyHold(marked=None)
    hold.asked(root(0), newest=root(5), now_s=0.0)
    assert hold.mark(root(20), TREE, now_s=1.0) == root(20)


@pytest.mark.parametrize("known", [None, root(9), PolicyVersion(LineageName("0-other"), 30)])
def test_payloads_stay_for_what_is_copied_where_nothing_older_is_of_use(known: PolicyVersion | None) -> None:
    hold = hold_of(known, newest=root(35))
    assert hold.mark(root(40), TREE, now_s=1.0) == root(35)
    hold.asked(root(35), newest=root(80), now_s=2.0)
    assert hold.mark(root(80), TREE, now_s=3.0) == root(35)


def test_one_that_copies_nothing_more_is_given_up() -> None:
    hold = hold_of(root(30))
    hold.asked(root(30), newest=root(1000), now_s=HELD_S_MAX - 1.0)
    assert hold.mark(root(40), TREE, now_s=HELD_S_MAX) == root(30)
    assert hold.mark(root(40), TREE, now_s=HELD_S_MAX + 1.0) == root(40)
    assert hold.mark(root(60), TREE, now_s=HELD_S_MAX + 2.0) == root(60)


def test_one_that_has_the_newest_is_not_late_however_long_the_learner_rests() -> None:
    hold = hold_of(root(30))
    hold.asked(root(30), newest=root(30), now_s=10 * HELD_S_MAX)
    assert hold.mark(root(40), TREE, now_s=10 * HELD_S_MAX + 1.0) == root(30)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_marked_never_goes_back(seed: int) -> None:
    rng, hold, marks = random.Random(seed), StandbyHold(marked=root(0)), [0]
    oldest = 0
    for second in range(300):
        oldest += rng.randrange(3)
        hold.asked(root(rng.randrange(oldest + 1)), newest=root(oldest + 5), now_s=float(second))
        marks.append(hold.mark(root(oldest), TREE, now_s=float(second)).step)
    assert marks == sorted(marks)
    assert marks[-1] <= oldest
