"""Run it with pytest, in this folder."""

import random
from types import SimpleNamespace

from my_curriculum import LEAST, Unsolved
from my_task import Reverse


def weights_of(*success_rates):
    bins = [SimpleNamespace(success_rate=each) for each in success_rates]
    return Unsolved().weights(bins, 0, random.Random(0))


def test_what_is_not_solved_comes_most_often():
    assert weights_of(0.75, 0.25, None) == [0.25, 0.75, 1.0]


def test_what_is_solved_still_comes():
    assert weights_of(1.0) == [LEAST]


def test_each_problem_is_in_a_bin():
    assert {each["bin"] for each in Reverse().problems()} == {"2 digits", "3 digits"}
