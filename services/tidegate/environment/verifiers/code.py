"""Tests of model-written functions, with the code under test apart from the tests.

The sandbox gets the program and the arguments of the calls, never a result that is right. It writes one line of JSON
for each call; the comparison and the verdict are made here. Whatever the program does inside (exit, patch the
interpreter, print a verdict, return objects that equal everything), it can change its own answers only.
"""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tidegate.core.errors import ConfigError
from tidegate.environment.sandbox.port import (
    STDIN_BYTES_MAX,
    IsolationUnavailableError,
    Sandbox,
    SandboxLimits,
    SandboxResult,
)
from tidegate.environment.tasks.port import Problem, Score
from tidegate.environment.verifiers.code_cases import CodeTests, parse_tests, passed, program_in
from tidegate.environment.verifiers.settings import CodeSettings

# Runs in the sandbox, in one process with the program: the worker trusts nothing of it. Results leave on a copy of
# stdout; what the program prints goes to stderr and is no answer.
_CALLER = """
import json, os, sys
given = json.loads(sys.stdin.read())
answers = open(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)

def plain(value):
    if type(value) in (bool, int, float, str, type(None)):
        return value
    if type(value) in (list, tuple):
        return [plain(each) for each in value]
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: plain(each) for key, each in value.items()}
    raise TypeError(f"a result of the type {type(value).__name__} is not plain JSON")

names = {"__name__": "solution", "__builtins__": __builtins__}
exec(compile(given["program"], "solution.py", "exec"), names)
function = names[given["function"]]
for arguments in given["calls"]:
    try:
        line = json.dumps({"result": plain(function(*arguments))}, allow_nan=False)
    except Exception as error:
        line = json.dumps({"error": type(error).__name__})
    answers.write(line + "\\n")
    answers.flush()
"""


class CodeVerifier:
    """``port.Verifier`` by the tests in a problem's answer."""

    def __init__(
        self, settings: CodeSettings, *, isolated: Callable[[], Sandbox], limits: SandboxLimits
    ) -> None:
        """``isolated`` starts the sandbox, or raises ``IsolationUnavailableError``; ``limits`` are those of one run."""
        self._settings = settings
        self._isolated = isolated
        self._limits = limits
        # A run holds a thread until its end, at most limits.wall_s; further completions wait here.
        self._threads = ThreadPoolExecutor(settings.max_concurrent, thread_name_prefix="code-verifier")

    async def start(self) -> None:
        """Start the sandbox.

        Raises:
            ConfigError: this machine cannot isolate programs.
        """
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._isolated)
        except IsolationUnavailableError as error:
            raise ConfigError(error.what, why=error.why, fix=error.fix) from error

    async def score(self, problem: Problem, completion: str) -> Score:
        """1 or 0, or with ``credit: share`` the share of the cases passed.

        Raises:
            RecordError: the problem's answer holds no tests.
            UnavailableError: the sandbox itself failed; the same call may succeed.
        """
        tests = parse_tests(problem.answer)
        program = program_in(completion)
        if program is None:
            return _verdict([False] * len(tests.cases), "no program between ```python and ```", share=False)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._tested, program, tests)

    def _tested(self, program: str, tests: CodeTests) -> Score:
        calls = [case.arguments for case in tests.cases]
        request = json.dumps({"program": program, "function": tests.function, "calls": calls})
        if len(request) > STDIN_BYTES_MAX:
            return _verdict([False] * len(calls), "the program is too large", share=False)
        result = self._isolated().run_python(_CALLER, stdin=request, limits=self._limits)
        if not result.ok:
            return _verdict([False] * len(calls), _end_of(result), share=False)
        marks = passed(result.stdout, tests, relative_tolerance=self._settings.relative_tolerance)
        return _verdict(marks, "", share=self._settings.credit == "share")

    async def close(self) -> None:
        """Start no more runs."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _end_of(result: SandboxResult) -> str:
    """How a program ended that did not end by itself and without an error."""
    ended = f"out of {result.limit}" if result.limit else f"exit status {result.exit_status}"
    last_lines = result.stderr.strip().splitlines()[-1:]
    return ": ".join([ended, *(line[:200] for line in last_lines)])


def _verdict(marks: list[bool], log: str, *, share: bool) -> Score:
    part = sum(marks) / len(marks)
    return Score(
        reward=part if share else float(part == 1.0),
        components={"cases_passed": part},
        log=log or f"{sum(marks)} of {len(marks)} cases passed",
    )
