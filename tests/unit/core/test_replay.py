from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.replay import OPEN_END, Use, overused, produced_by, surviving_steps, update_survives
from tidegate.core.staleness import Lineage, LineageTree

OLD, NEW = LineageName("0-aaaa"), LineageName("1-bbbb")
FORKED = LineageTree().add(Lineage(name=OLD)).add(Lineage(name=NEW, parent=OLD, fork_step=10))


def at(lineage: LineageName, step: int) -> PolicyVersion:
    return PolicyVersion(lineage=lineage, step=step)


def test_update_publishes_the_next_step_of_its_lineage() -> None:
    assert produced_by(at(OLD, 9)) == at(OLD, 10)


def test_fork_at_step_f_keeps_the_update_that_published_f_and_loses_the_one_made_at_f() -> None:
    head = at(NEW, 10)
    assert update_survives(at(OLD, 9), head=head, tree=FORKED)
    assert not update_survives(at(OLD, 10), head=head, tree=FORKED)


def test_version_does_not_hold_the_update_that_is_made_of_it() -> None:
    assert update_survives(at(NEW, 11), head=at(NEW, 12), tree=FORKED)
    assert not update_survives(at(NEW, 12), head=at(NEW, 12), tree=FORKED)


def test_nothing_of_another_root_survives() -> None:
    tree = FORKED.add(Lineage(name=LineageName("2-cccc")))
    head = at(LineageName("2-cccc"), 50)
    assert not update_survives(at(OLD, 0), head=head, tree=tree)
    assert surviving_steps(head, tree) == {LineageName("2-cccc"): 50}


@st.composite
def trees(draw: st.DrawFn) -> LineageTree:
    tree = LineageTree().add(Lineage(name=LineageName("0")))
    for index in range(1, draw(st.integers(1, 6))):
        parent = draw(st.sampled_from(sorted(tree.lineages)))
        fork_step = draw(st.integers(tree.lineages[parent].fork_step, 20))
        tree = tree.add(Lineage(name=LineageName(str(index)), parent=parent, fork_step=fork_step))
    return tree


@given(tree=trees(), data=st.data())
def test_bounds_for_a_search_agree_with_the_ancestry_of_each_update(
    tree: LineageTree, data: st.DataObject
) -> None:
    names = st.sampled_from(sorted(tree.lineages))
    head_lineage = data.draw(names)
    head = at(head_lineage, data.draw(st.integers(tree.lineages[head_lineage].fork_step, 25)))
    update = at(data.draw(names), data.draw(st.integers(0, 25)))
    assert (update.step < surviving_steps(head, tree).get(update.lineage, 0)) == update_survives(
        update, head=head, tree=tree
    )


def test_use_in_a_lost_branch_does_not_count_against_the_limit() -> None:
    surviving = surviving_steps(at(NEW, OPEN_END), FORKED)
    lost_then_again = [Use(seq=1, version=at(OLD, 12)), Use(seq=1, version=at(NEW, 15))]
    kept_and_again = [Use(seq=2, version=at(OLD, 9)), Use(seq=2, version=at(NEW, 15))]
    assert overused(lost_then_again, surviving=surviving) == 0
    assert overused([*lost_then_again, *kept_and_again], surviving=surviving) == 1
    assert overused(kept_and_again, surviving=surviving, uses_max=2) == 0
