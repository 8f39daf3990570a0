"""The task: write digits backwards. Each problem is in a bin, here by its length, and a curriculum weighs bins."""


class Reverse:
    """`run.yaml` names it as `my_task.py:Reverse`."""

    def problems(self):
        """Problems of two and of three digits; a fifth of them is held out for evaluations."""
        two = [f"{number:02}" for number in range(100)]
        three = [f"{number:03}" for number in range(0, 1000, 3)]
        return [
            {"prompt": f"{each}=", "answer": each[::-1], "bin": f"{len(each)} digits"} for each in two + three
        ]

    def score(self, problem, completion):
        """The share of digits at their place, and 0 for a text of another length."""
        if len(completion) != len(problem.answer):
            return 0.0
        return sum(a == b for a, b in zip(completion, problem.answer)) / len(completion)
