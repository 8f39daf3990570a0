"""Programs that attack their tests: in one program with the tests they pass, apart from the tests they fail."""

import json
from collections.abc import AsyncIterator

import pytest

from tidegate.core.errors import ConfigError, RecordError
from tidegate.environment.sandbox.linux import LinuxSandbox
from tidegate.environment.sandbox.port import Sandbox, SandboxLimits
from tidegate.environment.sandbox.unavailable import isolation_unavailable
from tidegate.environment.tasks.port import Problem
from tidegate.environment.verifiers.code import CodeVerifier
from tidegate.environment.verifiers.settings import CodeSettings

LIMITS = SandboxLimits(cpu_s=1.0, wall_s=8.0)
CASES = [{"arguments": [1, 2], "result": 3}, {"arguments": [20, 22], "result": 42}]
PROBLEM = Problem("add", "Write add(a, b).", json.dumps({"function": "add", "cases": CASES}), "easy")

# What a suite in one program with the code under test looks like.
SUITE = """
{program}

num_passed = 0
for arguments, expected in (((1, 2), 3), ((20, 22), 42)):
    assert add(*arguments) == expected
    num_passed += 1
print(num_passed, "passed")
"""

# Each of these passes the suite in one program.
FORGERIES = {
    "exits_early": "import os\nos.write(1, b'2 passed\\n')\nos._exit(0)",
    "exits_in_a_call": "import os\ndef add(a, b):\n    os.write(1, b'2 passed\\n')\n    os._exit(0)",
    "equals_everything": "class Any:\n    def __eq__(self, other): return True\ndef add(a, b): return Any()",
    "number_that_equals_everything": "class Any(int):\n    def __eq__(self, other): return True\n"
    "def add(a, b): return Any(7)",
    "prints_a_verdict": "print('2 passed')\nraise SystemExit(0)",
    "patches_the_interpreter": """
import builtins, json, sys
real = print
builtins.print = lambda *values: real("2 passed")
json.dumps = lambda *a, **k: '{"result": 3}'
json.loads = lambda *a, **k: {}
sys.excepthook = lambda *error: real("2 passed")
class Anything:
    def __eq__(self, other): return True
def add(a, b): return Anything()
""",
    "thread_takes_over": """
import os, threading, time
def forge():
    os.write(1, b"2 passed\\n")
    os._exit(0)
threading.Thread(target=forge).start()
def add(a, b): time.sleep(60)
""",
}

# These write where the answers belong: the descriptor is found by looking at all of them.
ON_THE_CHANNEL = """
import os
def write(text):
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, text)
        except OSError:
            pass
"""
FORGED_ANSWERS = {
    "guessed_answers": ON_THE_CHANNEL + "write(b'{\"result\": 1}\\n' * 2)\nos._exit(0)",
    "fake_verdict": ON_THE_CHANNEL + "write(b'2 passed\\n')\nos._exit(0)",
    "every_line_twice": ON_THE_CHANNEL
    + "def add(a, b):\n    write(b'{\"result\": %d}\\n' % (a + b))\n    return a + b",
    "text_after_the_last_line": ON_THE_CHANNEL
    + "import atexit\natexit.register(write, b' ')\ndef add(a, b): return a + b",
    "forked_twin": "import os\nif os.fork(): os.wait()\ndef add(a, b): return a + b",
    "reads_the_tests": """
import sys
def add(a, b):
    frame = sys._getframe(1)
    while frame:
        if "given" in frame.f_globals:
            return frame.f_globals["given"]["cases"][0]["result"]
        frame = frame.f_back
""",
}

REFUSED = {
    "wrong": "def add(a, b): return a - b",
    "no_such_function": "def sub(a, b): return a - b",
    "raises": "def add(a, b): raise ValueError",
    "text_for_a_number": "def add(a, b): return str(a + b)",
    "truth_for_a_number": "def add(a, b): return True",
    "float_for_a_whole_number": "def add(a, b): return float(a + b)",
    "set": "def add(a, b): return {a + b}",
    "not_a_number": "def add(a, b): return float('nan')",
    "nested_without_end": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "oversized_answer": "def add(a, b): return 'x' * (1 << 20)",
    "enormous_number": "import sys\nsys.set_int_max_str_digits(0)\ndef add(a, b): return 10 ** 9000",
    "output_flood": "while True: print('x' * 1000)\ndef add(a, b): return a + b",
    "infinite_loop": "def add(a, b):\n    while True: pass",
    "sleeps": "import time\ndef add(a, b): time.sleep(600)",
    "thread_left_behind": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    "def add(a, b): return a + b",
    "syntax_error": "def add(a, b) return a + b",
    "exit_in_a_call": "def add(a, b): raise SystemExit(0)",
    "right_answers_and_a_failed_end": "import atexit, os\natexit.register(os._exit, 3)\ndef add(a, b): return a + b",
}


def fenced(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```"


@pytest.fixture
async def verifier(sandbox: LinuxSandbox) -> AsyncIterator[CodeVerifier]:
    verifier = CodeVerifier(CodeSettings(), isolated=lambda: sandbox, limits=LIMITS)
    await verifier.start()
    yield verifier
    await verifier.close()


@pytest.mark.parametrize("attack", FORGERIES)
async def test_attack_that_passes_a_suite_in_one_program_fails_apart_from_it(
    attack: str, sandbox: LinuxSandbox, verifier: CodeVerifier
) -> None:
    program = FORGERIES[attack]
    together = sandbox.run_python(SUITE.format(program=program), limits=LIMITS)
    assert (together.ok, together.stdout) == (True, "2 passed\n")
    assert (await verifier.score(PROBLEM, fenced(program))).reward == 0.0


@pytest.mark.parametrize("attack", FORGED_ANSWERS)
async def test_writing_to_the_channel_of_answers_passes_nothing(attack: str, verifier: CodeVerifier) -> None:
    score = await verifier.score(PROBLEM, fenced(FORGED_ANSWERS[attack]))
    assert (score.reward, score.components) == (0.0, {"cases_passed": 0.0})


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
async def test_anything_but_a_right_plain_result_in_time_fails(program: str, verifier: CodeVerifier) -> None:
    limited = CodeVerifier(
        CodeSettings(credit="share"),
        isolated=verifier._isolated,  # pyright: ignore[reportPrivateUsage]
        limits=SandboxLimits(cpu_s=0.5, wall_s=3.0),
    )
    assert (await limited.score(PROBLEM, fenced(program))).reward == 0.0


@pytest.mark.parametrize(
    "program",
    [
        "def add(a, b): return a + b",
        "def add(a, b):\n    print('debugging')\n    return a + b",
        "print('{\"result\": 0}')\nfrom operator import add",
        "if __name__ == '__main__':\n    input()\nadd = lambda *given: sum(given)",
    ],
)
async def test_right_program_passes_and_may_print(program: str, verifier: CodeVerifier) -> None:
    score = await verifier.score(PROBLEM, "```\nunused\n```\n" + fenced(program))
    assert (score.reward, score.log) == (1.0, "2 of 2 cases passed")


async def test_share_of_the_cases_counts_only_where_it_is_asked_for(sandbox: LinuxSandbox) -> None:
    program = fenced("def add(a, b): return 3")
    for credit, reward in (("all", 0.0), ("share", 0.5)):
        settings = CodeSettings(credit=credit)  # pyright: ignore[reportArgumentType]  from the tuple above
        verifier = CodeVerifier(settings, isolated=lambda: sandbox, limits=LIMITS)
        score = await verifier.score(PROBLEM, program)
        assert (score.reward, score.components) == (reward, {"cases_passed": 0.5})
        await verifier.close()


async def test_completion_without_a_program_runs_nothing(verifier: CodeVerifier) -> None:
    score = await verifier.score(PROBLEM, "def add(a, b): return a + b")
    assert (score.reward, score.log) == (0.0, "no program between ```python and ```")


async def test_problem_without_tests_is_a_failure_and_no_zero(verifier: CodeVerifier) -> None:
    with pytest.raises(RecordError, match="holds no tests"):
        await verifier.score(Problem("p", "p", "42", "b"), fenced("x = 1"))


async def test_verifier_does_not_start_where_programs_cannot_be_isolated() -> None:
    def refused() -> Sandbox:
        raise isolation_unavailable("unshare: refused")

    with pytest.raises(ConfigError, match="cannot be isolated"):
        await CodeVerifier(CodeSettings(), isolated=refused, limits=LIMITS).start()
