"""Run it with pytest, in this folder."""

from types import SimpleNamespace

import torch
from my_objective import my_loss
from my_reward import score

SETTINGS = SimpleNamespace(clip_low=0.2, clip_high=0.2)


def gradient_of(logprob, advantage):
    logprobs_BT = torch.tensor([[logprob]], requires_grad=True)
    tokens = SimpleNamespace(
        logprobs_BT=logprobs_BT,
        proximal_BT=torch.tensor([[-1.0]]),
        advantages_BT=torch.tensor([[advantage]]),
    )
    my_loss(tokens, SETTINGS).sum().backward()
    return float(logprobs_BT.grad)


def test_good_tokens_become_likelier_and_bad_ones_less_likely():
    assert gradient_of(-1.0, 1.0) > 0.0
    assert gradient_of(-1.0, -1.0) < 0.0


def test_tokens_that_moved_far_enough_are_left_alone():
    assert gradient_of(-0.5, 1.0) == 0.0
    assert gradient_of(-1.5, -1.0) == 0.0


def test_only_the_right_answer_has_the_full_reward():
    assert score("123=", "321", "321") == 1.0
    assert score("123=", "32", "321") == 0.0
