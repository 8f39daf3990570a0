"""Run it with pytest, in this folder."""

from types import SimpleNamespace

from my_task import Reverse


def test_only_the_right_answer_has_the_full_reward():
    task = Reverse()
    prompt, answer = task.problems()[4]
    problem = SimpleNamespace(prompt=prompt, answer=answer)
    assert task.score(problem, answer) == 1.0
    assert task.score(problem, answer[:-1] + "x") < 1.0
    assert task.score(problem, "") == 0.0


def test_prompts_are_different():
    prompts = [prompt for prompt, _ in Reverse().problems()]
    assert len(set(prompts)) == len(prompts)
