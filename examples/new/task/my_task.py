"""A task of one turn: write three digits backwards. Replace the problems and the score by your own."""


class Reverse:
    """`run.yaml` names it as `my_task.py:Reverse`."""

    def problems(self):
        """Pairs of a prompt and its answer; a fifth of them is held out for evaluations."""
        digits = [f"{number:03}" for number in range(0, 1000, 3)]
        return [(f"{each}=", each[::-1]) for each in digits]

    def score(self, problem, completion):
        """Any number is a reward: here the share of digits at their place, and 0 for a text of another length."""
        if len(completion) != len(problem.answer):
            return 0.0
        return sum(a == b for a, b in zip(completion, problem.answer)) / len(completion)
