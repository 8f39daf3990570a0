"""Mistakes in reward functions, through the real service: what is trained, what is said, and that the others go on."""

import asyncio
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from tests.integration.environment.groups import drained, group, publish, scored_messages
from tests.integration.environment.store import FakeStore
from tests.support.service_harness import make_context, running
from tidegate.catalogue import environment as statistics
from tidegate.core.errors import ConfigError
from tidegate.environment import main
from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.failures import SAMPLE_CHARS_MAX
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.wire.frame import decode_frame, encode_frame
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration
MISTAKES = Path(__file__).with_name("mistakes.py")
HERE = r"\S*mistakes\.py:[0-9]+"

# What each mistake is called, with the place in its file.
FAILURES = {
    "returns_none": f"NoneType at {HERE} in score: it returned None",
    "returns_array": f"numpy.ndarray at {HERE} in score: it returned numpy.ndarray of shape .2,.",
    "returns_text": f"str at {HERE} in score: it returned the text '1.0', and a reward is a number",
    "returns_nan": "it gave the reward nan",
    "returns_infinity": "it gave the reward inf",
    "returns_1e300": r"it gave the reward 1e.300, and a reward is finite and below 1e.12",
    "returns_long_int": f"int at {HERE} in score: it returned a number that no float holds",
    "returns_complex": f"complex at {HERE} in score: it returned a value of type complex",
    "returns_tuple": f"tuple at {HERE} in score: it returned a value of type tuple",
    "returns_coroutine": f"coroutine at {HERE} in score: it returned a coroutine: define the function by `def`",
    "raises_value_error": f"ValueError at {HERE} in raises_value_error: could not convert string to float",
    "raises_key_error": f"KeyError at {HERE} in raises_key_error: 'bad'",
    "raises_attribute_error": f"AttributeError at {HERE} in raises_attribute_error: 'str' object has no",
    "raises_recursion_error": f"RecursionError at {HERE} in .*: maximum recursion depth exceeded",
    "raises_memory_error": f"MemoryError at {HERE} in raises_memory_error",
    "raises_keyboard_interrupt": f"KeyboardInterrupt at {HERE} in raises_keyboard_interrupt",
    "raises_system_exit": f"SystemExit at {HERE} in raises_system_exit: 1",
    "raises_stop_iteration": f"StopIteration at {HERE} in raises_stop_iteration",
    "raises_without_words": f"_SilentError at {HERE} in raises_without_words: its __str__ raised KeyError",
    "raises_what_cannot_be_pickled": f"_LocalError at {HERE} in raises_what_cannot_be_pickled: an open file",
    "reads_the_keyboard": f"EOFError at {HERE} in reads_the_keyboard",
    "exits": f"ended at {HERE} in score: it ended its process with exit code 3",
    "aborts": f"ended at {HERE} in aborts: it was ended by SIGABRT",
    "crashes": f"ended at {HERE} in crashes: it was ended by SIGSEGV",
    "loops": f"deadline at {HERE} in loops: it did not end within 2 s",
    "sleeps": f"deadline at {HERE} in sleeps: it did not end within 2 s",
    "waits_for_a_socket": f"deadline at {HERE} in waits_for_a_socket: it did not end within 2 s",
    "waits_for_its_own_lock": f"deadline at {HERE} in waits_for_its_own_lock: it did not end within 2 s",
}
# What is accepted, and the reward that is trained.
REWARDS = {
    "returns_int": 1.0,
    "returns_bool": 1.0,
    "returns_float32": 0.5,
    "returns_float64": 0.5,
    "returns_array_of_no_dimension": 0.5,
    "returns_torch": 0.5,
    "returns_decimal": 0.5,
    "prints_ten_megabytes": 1.0,
    "forks_and_lets_the_copy_return": 1.0,
    "changes_folder_environment_and_seed": 1.0,
}
# What cannot be loaded: the file, the name in it, and what is said.
UNLOADABLE = {
    "syntax error": ("def score(prompt\n", "score", r"SyntaxError at \S*own\.py:1"),
    "import error": (
        "import no_such_module\ndef score(p, c, a): return 1\n",
        "score",
        r"ModuleNotFoundError at \S*own\.py:1 in <module>: No mod",
    ),
    "raises": (
        "x = 1\nx.no\ndef score(p, c, a): return 1\n",
        "score",
        r"AttributeError at \S*own\.py:2 in <module>",
    ),
    "exits": (
        "raise SystemExit(2)\ndef score(p, c, a): return 1\n",
        "score",
        r"SystemExit at \S*own\.py:1 in <module>: 2",
    ),
    "ends": (
        "import os\nos._exit(2)\ndef score(p, c, a): return 1\n",
        "score",
        "it ended its process with exit code 2",
    ),
    "hangs": (
        "import time\ntime.sleep(60)\ndef score(p, c, a): return 1\n",
        "score",
        r"it was not loaded within 2 s, at \S*own\.py:2 in <module>",
    ),
    "no such name": ("def reward(p, c, a): return 1\n", "score", "defines no 'score'. name one of: reward"),
    "no function": ("score = 1\n", "score", "is no function. it is int"),
    "wrong signature": (
        "def score(completion): return 1\n",
        "score",
        r"cannot be called as .prompt, completion, answer.",
    ),
}


def config_of(function: str, *, path: Path = MISTAKES, **more: Any) -> EnvironmentConfig:
    verifier = {"kind": "python", "path": str(path), "function": function, "deadline_s": 2.0}
    on_error = more.pop("on_error", "drop")
    return msgspec.convert(
        {
            "rewards": {"own": 1.0},
            "verifiers": {"own": verifier | more},
            "ack_wait_s": 60.0,
            "on_error": on_error,
        },
        EnvironmentConfig,
    )


async def send(bus: Bus, topology: Topology, *groups: Sequence[str]) -> None:
    for number, completions in enumerate(groups, start=1):
        records = group(f"task-{number}", *completions)
        await publish(bus, topology, encode_frame(records), records)


@pytest.mark.parametrize("mistake", FAILURES)
async def test_mistake_drops_its_own_group_and_is_named_with_its_line(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore, mistake: str
) -> None:
    await send(bus, topology, ("bad", "good"), ("good", "good"))
    with capture_logs() as logs:
        context = make_context("environment", settings, bus=bus)
        async with running(main.build, config_of(mistake), context):
            [message] = await scored_messages(bus, topology, 1)
            await drained(bus, topology)
    assert [(record.task_id, record.reward) for record in decode_frame(message.data)] == [("task-2", 1.0)] * 2
    assert set(store.dropped) == {"task-1.0", "task-1.1"}
    reason, detail = store.dropped["task-1.0"]
    assert reason == "failed"
    assert "environment.on_error is drop: own: " in detail
    assert re.search(FAILURES[mistake], detail), detail
    label = context.stats.snapshot(at_s=0.0).labels[statistics.VERIFIER_FAILURE]
    assert re.search(FAILURES[mistake], label)
    assert context.stats.value(statistics.VERIFIER_FAILURES) == 1
    [said] = [line for line in logs if line["event"] == "verifier_failed"]
    assert (said["completion"], said["answer"]) == ("bad", "085")


@pytest.mark.parametrize("function", REWARDS)
async def test_numbers_of_all_kinds_and_side_effects_are_rewarded(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore, function: str
) -> None:
    before = (os.getcwd(), dict(os.environ))
    await send(bus, topology, ("odd", "good"), ("good", "odd"))
    async with running(
        main.build, config_of(function, deadline_s=60.0), make_context("environment", settings, bus=bus)
    ):
        messages = await scored_messages(bus, topology, 2)
        await drained(bus, topology)
    rewards = sorted(record.reward or 0.0 for message in messages for record in decode_frame(message.data))
    assert rewards == sorted([REWARDS[function], 1.0] * 2)
    assert store.dropped == {}
    assert before == (os.getcwd(), dict(os.environ))


@pytest.mark.parametrize("mistake", UNLOADABLE)
async def test_code_that_cannot_be_loaded_is_refused_before_anything_is_scored(
    bus: Bus, settings: Settings, tmp_path: Path, mistake: str
) -> None:
    text, function, sentence = UNLOADABLE[mistake]
    path = tmp_path / "own.py"
    path.write_text(text)
    deadline_s = 2.0 if mistake == "hangs" else 60.0
    with pytest.raises(ConfigError, match=sentence):
        async with running(
            main.build,
            config_of(function, path=path, start_deadline_s=deadline_s),
            make_context("environment", settings, bus=bus),
        ):
            raise AssertionError("it started")


async def test_processes_that_all_hang_cost_no_other_completion_its_reward(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    hanging = [(f"bad {number}", f"worse {number}") for number in range(3)]
    await send(bus, topology, *hanging, *[("good", "good")] * 3)
    async with running(
        main.build, config_of("sleeps", deadline_s=1.0), make_context("environment", settings, bus=bus)
    ):
        messages = await scored_messages(bus, topology, 3)
        await drained(bus, topology)
    assert all(record.reward == 1.0 for message in messages for record in decode_frame(message.data))
    assert set(store.dropped) == {f"task-{number}.{index}" for number in (1, 2, 3) for index in (0, 1)}


async def test_memory_that_leaks_costs_no_verdict(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    await send(bus, topology, *[(f"leak {number}", f"more {number}") for number in range(6)])
    config = config_of("leaks_memory", deadline_s=60.0, memory_bytes=500_000_000, processes=1)
    async with running(main.build, config, make_context("environment", settings, bus=bus)) as context:
        messages = await scored_messages(bus, topology, 6)
        await drained(bus, topology)
    assert all(record.reward == 1.0 for message in messages for record in decode_frame(message.data))
    assert context.stats.value(statistics.VERIFIER_FAILURES) == 0


async def test_processes_that_own_code_started_end_with_the_service(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    await send(bus, topology, ("odd", "good"))
    async with running(
        main.build,
        config_of("starts_what_outlives_it", deadline_s=60.0),
        make_context("environment", settings, bus=bus),
    ):
        [message] = await scored_messages(bus, topology, 1)
    pid = int(decode_frame(message.data)[0].reward or 0.0)
    async with asyncio.timeout(60.0):
        while _runs(pid):
            await asyncio.sleep(0.02)


async def test_first_failure_of_a_kind_is_logged_with_its_traceback_and_later_ones_are_counted(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    await send(bus, topology, *[(f"bad {number}" + "x" * 1000, "good") for number in range(5)])
    context = make_context("environment", settings, bus=bus)
    with capture_logs() as logs:
        async with running(main.build, config_of("raises_key_error", on_error="zero"), context):
            messages = await scored_messages(bus, topology, 5)
            await drained(bus, topology)
    [said] = [line for line in logs if line["event"] == "verifier_failed"]
    assert said["consequence"] == "it trains as reward 0"
    assert 'mistakes.py", line ' in said["traceback"]
    assert "KeyError" in said["traceback"]
    assert len(said["completion"]) == SAMPLE_CHARS_MAX + 1
    values = context.stats.snapshot(at_s=0.0).values
    assert (values[statistics.VERDICTS], values[statistics.VERIFIER_FAILURES]) == (10, 5)
    records = [record for message in messages for record in decode_frame(message.data)]
    assert sorted(record.reward or 0.0 for record in records) == [0.0] * 5 + [1.0] * 5
    assert all("KeyError at" in record.verifier_log for record in records if record.reward == 0.0)


def _runs(pid: int) -> bool:
    """Whether a process runs; a zombie, which still waits for its parent, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
