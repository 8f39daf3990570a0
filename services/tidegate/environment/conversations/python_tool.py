"""Arithmetic questions that need a program: the policy writes Python, a sandbox runs it.

A turn with a fenced block of Python is run and answered with what it printed; a turn with ``answer: 42`` ends the
episode. Without isolation sessions are refused: model-written code runs only in the sandbox.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from math import isqrt

import msgspec

from tidegate.core.errors import RecordError
from tidegate.environment.conversations.port import ConversationTurn, ToolUse
from tidegate.environment.conversations.tools import TOOL_FAILED, Tools
from tidegate.environment.sandbox.port import SandboxResult
from tidegate.environment.tasks.port import Demonstration, Problem, Score, Split
from tidegate.environment.tasks.splits import repeated, split_of

NUM_DRAWN = 3_000
DRAW_SEED = 3141
TURNS_MAX = 6
OUTPUT_CHARS_MAX = 1_000
# Reward for a program that ran, with a wrong answer.
RAN_WEIGHT = 0.1
SYSTEM = (
    "Answer the question. You can run Python: write a program between ```python and ``` and you will be told what it "
    "prints. When you know the answer, write it as: answer: 42"
)
NEITHER = "Write a program between ```python and ```, or the answer as: answer: 42"
_PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)
_ANSWER = re.compile(r"answer:\s{0,4}(-?[0-9]{1,40})(?![0-9]|\.[0-9])", re.IGNORECASE)


class Question(msgspec.Struct, frozen=True):
    """A question, its answer, and a program that prints it."""

    text: str
    answer: int
    program: str


class PythonTool:
    """The task. Its curriculum bin is the kind of question: ``primes``, ``divisors``, ``digits``, ``remainder``."""

    @property
    def deterministic(self) -> bool:
        """False: programs may read the clock, and time limits depend on the machine."""
        return False

    def problems(self, split: Split, *, seed: int) -> Sequence[Problem]:
        """All problems of a split, shuffled by ``seed``."""
        return split_of((problem for problem, _ in _drawn()), split, seed=seed)

    def begin(self, problem: Problem, *, seed: int, tools: Tools) -> "PythonEpisode":
        """An episode about a problem.

        Raises:
            IsolationUnavailableError: this machine cannot isolate model-written code.
        """
        return PythonEpisode(problem, seed=seed, tools=tools)

    def score(self, problem: Problem, completion: str) -> Score:
        """1 for the answer without any program; no program is run."""
        return verdict(problem, completion, ran=False)

    def demonstrations(self, *, seed: int, count: int) -> Sequence[Demonstration]:
        """Whole episodes about ``count`` training problems: the program, then the answer it printed."""
        questions = {problem.prompt_id: question for problem, question in _drawn()}
        problems = repeated(self.problems("train", seed=seed), count=count)
        return [_demonstration(problem, questions[problem.prompt_id]) for problem in problems]


class PythonEpisode:
    """The state of an episode: the turns taken, and whether a program ran."""

    def __init__(self, problem: Problem, *, seed: int, tools: Tools) -> None:
        """Start without a run.

        Raises:
            IsolationUnavailableError: this machine cannot isolate model-written code.
        """
        self._problem = problem
        self._seed = seed
        self._tools = tools
        self._sandbox = tools.sandbox()
        self._num_turns = 0
        self._ran = False

    @property
    def opening(self) -> str:
        """A chat with the rules and the question, as JSON."""
        return self._problem.prompt

    def reply(self, text: str) -> ConversationTurn:
        """The output of the turn's programs, in order; or the verdict on its answer.

        Raises:
            UnavailableError: the sandbox failed; the turn was not taken and can be retried.
        """
        turn_index = self._num_turns + 1
        programs = _PROGRAM.findall(text)
        if not programs and _ANSWER.search(text):
            return ConversationTurn("", score=verdict(self._problem, text, ran=self._ran))
        uses = [self._run(program, turn_index) for program in programs[:1]]
        self._num_turns = turn_index
        last = turn_index >= TURNS_MAX
        return ConversationTurn(
            uses[0].result if uses else NEITHER,
            score=verdict(self._problem, "", ran=self._ran) if last else None,
            truncated=last,
            tools=tuple(uses),
            delay_s=self._tools.conditions.delay_s(self._seed, turn_index) if uses else 0.0,
        )

    def _run(self, program: str, turn_index: int) -> ToolUse:
        if self._tools.conditions.fails(self._seed, turn_index):
            return ToolUse("python", program, TOOL_FAILED)
        try:
            result = self._sandbox.run_python(program, limits=self._tools.limits)
        except RecordError as error:
            return ToolUse("python", program, str(error))
        self._ran = self._ran or result.ok
        return ToolUse("python", program, report_of(result))


def report_of(result: SandboxResult) -> str:
    """The report of a run for the policy: the output, the end of the errors, the limit that ended it."""
    parts = [result.stdout.strip()[:OUTPUT_CHARS_MAX]]
    if not result.ok:
        parts.append(result.stderr.strip()[-OUTPUT_CHARS_MAX:])
        parts.append(
            f"stopped: out of {result.limit}" if result.limit else f"exit status {result.exit_status}"
        )
    return "\n".join(part for part in parts if part) or "nothing was printed"


def verdict(problem: Problem, text: str, *, ran: bool) -> Score:
    """1 for the right answer, 0.1 for a program that ran without it. The last answer of a text counts."""
    answers = _ANSWER.findall(text)
    exact = bool(answers) and answers[-1] == problem.answer
    return Score(
        reward=1.0 if exact else RAN_WEIGHT * ran,
        components={"exact": float(exact), "ran": float(ran)},
        log="solved"
        if exact
        else f"expected {problem.answer}, got {answers[-1] if answers else 'no answer'}",
    )


def _demonstration(problem: Problem, question: Question) -> Demonstration:
    return Demonstration(
        prompt=problem.prompt,
        completion=f"```python\n{question.program}\n```",
        exchanges=((problem.answer, f"answer: {problem.answer}"),),
    )


@lru_cache(maxsize=1)
def _drawn() -> tuple[tuple[Problem, Question], ...]:
    """Every problem, cached for the process: a session that names none draws one of them."""
    return tuple(islice(_draws(), NUM_DRAWN))


def _draws() -> Iterator[tuple[Problem, Question]]:
    rng = random.Random(DRAW_SEED)
    kinds = sorted(KINDS)
    while True:
        kind = rng.choice(kinds)
        question = KINDS[kind](rng)
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question.text}]
        prompt = msgspec.json.encode(messages).decode()
        yield Problem(question.text, prompt, str(question.answer), kind), question


def _primes(rng: random.Random) -> Question:
    limit = rng.randint(50, 2000)
    primes = [
        number
        for number in range(2, limit)
        if all(number % divisor for divisor in range(2, isqrt(number) + 1))
    ]
    program = f"print(sum(n for n in range(2, {limit}) if all(n % d for d in range(2, int(n**0.5) + 1))))"
    return Question(f"What is the sum of the primes below {limit}?", sum(primes), program)


def _divisors(rng: random.Random) -> Question:
    limit, first, second = rng.randint(100, 5000), rng.randint(2, 12), rng.randint(13, 40)
    answer = sum(number % first == 0 or number % second == 0 for number in range(1, limit + 1))
    return Question(
        f"How many numbers from 1 to {limit} can be divided by {first} or by {second} without a rest?",
        answer,
        f"print(sum(n % {first} == 0 or n % {second} == 0 for n in range(1, {limit + 1})))",
    )


def _digits(rng: random.Random) -> Question:
    base, power = rng.randint(2, 19), rng.randint(10, 60)
    answer = sum(int(digit) for digit in str(base**power))
    return Question(
        f"What is the sum of the digits of {base} to the power of {power}?",
        answer,
        f"print(sum(int(digit) for digit in str({base}**{power})))",
    )


def _remainder(rng: random.Random) -> Question:
    base, power, modulus = rng.randint(2, 99), rng.randint(10, 200), rng.randint(100, 9999)
    return Question(
        f"What is left when {base} to the power of {power} is divided by {modulus}?",
        pow(base, power, modulus),
        f"print(pow({base}, {power}, {modulus}))",
    )


KINDS: dict[str, Callable[[random.Random], Question]] = {
    "digits": _digits,
    "divisors": _divisors,
    "primes": _primes,
    "remainder": _remainder,
}
