import numpy as np
import pytest
import torch

from tests.unit.learner.ranks.tape import Tape
from tests.unit.learner.ranks.test_equality import actor_critic, segments
from tidegate.core.response import FRESH
from tidegate.learner.ranks.following import follow
from tidegate.learner.ranks.group import RankLostError
from tidegate.learner.ranks.messages import POLICY, STATE, Restore, StopRanks, Update, Wait, send
from tidegate.learner.ranks.port import ALONE, SharedTrainer


def record(tape: Tape, leader: SharedTrainer, *, updates: int) -> None:
    """Rank 0's commands: its state, then updates that it makes itself."""
    policy, state = leader.policy(), leader.state()
    tensors = {f"{POLICY}{name}": torch.tensor(array) for name, array in policy.items()}
    tensors |= {f"{STATE}{name}": torch.tensor(array) for name, array in state.tensors.items()}
    send(tape.as_group(), Restore(values=state.values), tensors)
    send(tape.as_group(), Wait())
    for number in range(1, updates + 1):
        batch = leader.prepare(segments(number, num_segments=2))
        packed = leader.pack(batch)
        command = Update(number=number, response=FRESH, values=dict(packed.values), check=False)
        send(tape.as_group(), command, packed.tensors)
        leader.update(batch, number=number)


def test_a_follower_goes_where_rank_0_goes() -> None:
    tape, leader, follower = Tape(), actor_critic(ALONE), actor_critic(ALONE, learning_rate=2e-3)
    leader.update(leader.prepare(segments(9, num_segments=2)), number=1)
    record(tape, leader, updates=2)
    send(tape.as_group(), StopRanks())
    tape.recorded = True
    follow(follower, tape.as_group(), asked_to_stop=lambda: False)
    for name, array in leader.policy().items():
        np.testing.assert_array_equal(array, follower.policy()[name])
    assert tape.asked == [0, 0, 0, 0]


def test_a_stopping_follower_reports_it_after_each_command_and_continues() -> None:
    tape, leader = Tape(), actor_critic(ALONE)
    record(tape, leader, updates=1)
    send(tape.as_group(), StopRanks())
    tape.recorded = True
    follow(actor_critic(ALONE), tape.as_group(), asked_to_stop=lambda: True)
    assert tape.asked == [1, 1, 1]


def test_a_follower_does_not_outlive_rank_0() -> None:
    tape = Tape()
    send(tape.as_group(), Wait())
    tape.recorded = True
    with pytest.raises(RankLostError):
        follow(actor_critic(ALONE), tape.as_group(), asked_to_stop=lambda: False)
