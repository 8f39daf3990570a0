"""Programs of the policy: run only in the sandbox, reported in few words, refused without isolation."""

import re

import pytest

from tests.unit.environment.conversations.test_conversations import FakeSandbox
from tidegate.core.errors import RecordError, UnavailableError
from tidegate.environment.conversations.python_tool import KINDS, TURNS_MAX, PythonTool, report_of
from tidegate.environment.conversations.tools import NO_TOOLS, Conditions, Tools
from tidegate.environment.sandbox.port import IsolationUnavailableError, SandboxLimits, SandboxResult
from tidegate.environment.session_envs import make_session_env
from tidegate.environment.tasks.port import Problem

PROBLEM = Problem("q", "[]", "42", "digits")
PROGRAM = "```python\nprint(6 * 7)  # 42\n```"


def result(**changes: object) -> SandboxResult:
    fields: dict[str, object] = {
        "exit_status": 0, "limit": None, "stdout": "", "stderr": "",
        "stdout_bytes": 0, "stderr_bytes": 0, "cpu_s": 0.0, "wall_s": 0.0,
    }  # fmt: skip
    return SandboxResult(**(fields | changes))  # pyright: ignore[reportArgumentType]  fields by name


def test_program_is_run_once_in_the_sandbox_and_its_output_told() -> None:
    sandbox = FakeSandbox()
    game = PythonTool().begin(PROBLEM, seed=0, tools=Tools(sandbox=lambda: sandbox))
    turn = game.reply(f"I will compute it.\n{PROGRAM}\nanswer: 1")
    assert (turn.observation, turn.done) == ("42", False)
    assert sandbox.programs == ["print(6 * 7)  # 42\n"]
    assert [(use.name, use.result) for use in turn.tools] == [("python", "42")]
    end = game.reply("So the answer: 42.")
    assert end.score is not None
    assert end.score.components == {"exact": 1.0, "ran": 1.0}


@pytest.mark.parametrize(
    ("text", "reward"),
    [("answer: 42", 1.0), ("Answer:42", 1.0), ("answer: 1, no, answer: 42", 1.0), ("answer: 42.5", 0.0),
     ("answer: 4", 0.0), ("42", 0.0), ("answer: 042", 0.0), ("answer: 42 or answer: 43", 0.0), ("", 0.0)],
)  # fmt: skip
def test_last_answer_counts(text: str, reward: float) -> None:
    assert PythonTool().score(PROBLEM, text).reward == reward


def test_turn_without_program_or_answer_is_told_what_to_write_and_turns_end() -> None:
    game = PythonTool().begin(PROBLEM, seed=0, tools=Tools(sandbox=FakeSandbox))
    turns = [game.reply("hm") for _ in range(TURNS_MAX)]
    assert "```python" in turns[0].observation
    assert [turn.done for turn in turns] == [False] * (TURNS_MAX - 1) + [True]
    assert turns[-1].truncated


def test_without_isolation_no_session_is_opened() -> None:
    with pytest.raises(IsolationUnavailableError):
        PythonTool().begin(PROBLEM, seed=0, tools=NO_TOOLS)
    env = make_session_env("python_tool", allowed_modules=())
    with pytest.raises(IsolationUnavailableError):
        env.reset(seed=0, problem=PROBLEM)


def test_sandbox_that_failed_costs_no_turn() -> None:
    class Failing(FakeSandbox):
        def run_python(
            self, code: str, *, stdin: str = "", limits: SandboxLimits | None = None
        ) -> SandboxResult:
            if not self.programs:
                self.programs.append(code)
                raise UnavailableError("the zygote died")
            return super().run_python(code)

    sandbox = Failing()
    game = PythonTool().begin(PROBLEM, seed=0, tools=Tools(sandbox=lambda: sandbox))
    with pytest.raises(UnavailableError):
        game.reply(PROGRAM)
    turns = [game.reply(PROGRAM) for _ in range(TURNS_MAX)]
    assert [turn.done for turn in turns] == [False] * (TURNS_MAX - 1) + [True]
    assert turns[-1].score is not None
    assert turns[-1].score.reward == pytest.approx(0.1), "programs ran, and no answer was given"


def test_program_that_the_sandbox_does_not_take_is_told_so() -> None:
    class Small(FakeSandbox):
        def run_python(
            self, code: str, *, stdin: str = "", limits: SandboxLimits | None = None
        ) -> SandboxResult:
            raise RecordError("The code has 2,000,000 bytes")

    turn = PythonTool().begin(PROBLEM, seed=0, tools=Tools(sandbox=Small)).reply(PROGRAM)
    assert (turn.observation, turn.done) == ("The code has 2,000,000 bytes.", False)


def test_injected_failure_runs_nothing() -> None:
    sandbox = FakeSandbox()
    tools = Tools(conditions=Conditions(error_share=1.0), sandbox=lambda: sandbox)
    turn = PythonTool().begin(PROBLEM, seed=0, tools=tools).reply(PROGRAM)
    assert (turn.observation, sandbox.programs) == ("error", [])


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (result(stdout=" 42\n"), "42"),
        (result(), "nothing was printed"),
        (
            result(exit_status=1, stdout="6\n", stderr="Traceback\nNameError: x\n"),
            "6\nTraceback\nNameError: x\nexit status 1",
        ),
        (result(exit_status=-9, limit="cpu"), "stopped: out of cpu"),
    ],
)
def test_runs_are_told_in_few_words(run: SandboxResult, said: str) -> None:
    assert report_of(run) == said


def test_long_output_is_cut() -> None:
    assert len(report_of(result(stdout="x" * 10_000))) == 1_000
    assert report_of(result(exit_status=1, stderr="x" * 10_000 + "NameError")).endswith(
        "NameError\nexit status 1"
    )


def test_reference_programs_print_the_answers() -> None:
    """Computed from the questions alone, independently of the generators."""
    for problem in PythonTool().problems("heldout", seed=0)[:200]:
        numbers = [int(number) for number in re.findall(r"[0-9]+", problem.prompt.rpartition("content")[2])]
        match problem.bin:
            case "primes":
                sieve = set(range(2, numbers[0]))
                for number in range(2, numbers[0]):
                    sieve -= set(range(2 * number, numbers[0], number))
                answer = sum(sieve)
            case "divisors":
                _, limit, first, second = numbers
                answer = len(set(range(first, limit + 1, first)) | set(range(second, limit + 1, second)))
            case "digits":
                answer = sum(map(int, str(pow(*numbers))))
            case _:
                answer = pow(*numbers)
        assert problem.answer == str(answer)
        assert problem.bin in KINDS
