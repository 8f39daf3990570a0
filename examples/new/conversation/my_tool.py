"""A task of several turns with a tool: add three digits by a tool that adds two numbers. Replace it by your own."""


class Sums:
    """`run.yaml` names it as `my_tool.py:Sums`."""

    def problems(self):
        """Pairs of a prompt and its answer; a fifth of them is held out for evaluations."""
        digits = range(1, 7)
        return [(f"{a}+{b}+{c}=", str(a + b + c)) for a in digits for b in digits for c in digits]

    def begin(self, problem, seed):
        """A new episode about a problem."""
        return Episode(problem)

    def solution(self, problem):
        """The turns of a good episode, which a small model of characters is shown before it is rewarded."""
        a, b, c = problem.prompt.rstrip("=").split("+")
        return [f"[{a}+{b}]", f"[{int(a) + int(b)}+{c}]", problem.answer]


class Episode:
    """What the policy reads first is `opening`; `reply` answers each of its turns."""

    def __init__(self, problem):
        self.opening, self.answer = problem.prompt, problem.answer

    def reply(self, text):
        """A call such as [3+4] is answered by the tool; any other text is the answer, which ends the episode."""
        if text.startswith("["):
            a, _, b = text.strip("[]").partition("+")
            return str(int(a) + int(b)) if a.isdecimal() and b.isdecimal() else "?"
        return float(text == self.answer)
