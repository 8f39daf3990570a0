"""Run it with pytest, in this folder."""

from types import SimpleNamespace

from my_tool import Sums


def played(turns):
    problem = SimpleNamespace(prompt="3+4+5=", answer="12")
    episode = Sums().begin(problem, seed=0)
    return [episode.reply(turn) for turn in turns]


def test_tool_adds_and_the_answer_ends_the_episode():
    assert played(["[3+4]", "[7+5]", "12"]) == ["7", "12", 1.0]
    assert played(["[3+x]", "13"]) == ["?", 0.0]


def test_solutions_are_rewarded():
    task = Sums()
    for prompt, answer in task.problems():
        problem = SimpleNamespace(prompt=prompt, answer=answer)
        episode = task.begin(problem, seed=0)
        assert [episode.reply(turn) for turn in task.solution(problem)][-1] == 1.0
