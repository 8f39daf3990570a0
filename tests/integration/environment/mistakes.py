"""What goes wrong in reward functions, as people write them: one mistake a function, each right about ``good``.

Run in the child processes of the environment service. A function that is no mistake says so in its name.
"""

import asyncio
import ctypes
import functools
import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any, cast

SECOND_S = 60.0
_LOCK = threading.Lock()
_KEPT: list[bytearray] = []


class _SilentError(Exception):
    def __str__(self) -> str:
        raise KeyError("no words")


class _LocalError(Exception):
    def __init__(self, holder: object) -> None:
        super().__init__("an open file")
        self.holder = holder

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


def _unless_good(mistake: Callable[[str], Any]) -> Callable[[str, str, str], Any]:
    @functools.wraps(mistake)
    def score(prompt: str, completion: str, answer: str) -> Any:
        return 1.0 if completion == "good" else mistake(completion)

    del score.__wrapped__  # its signature is that of ``score``
    return score


def returns(make: Callable[[], Any]) -> Callable[[str, str, str], Any]:
    return _unless_good(lambda _completion: make())


def _numpy(name: str, *arguments: Any) -> Any:
    import numpy

    return getattr(numpy, name)(*arguments)


def _torch(value: Any) -> Any:
    import torch

    return torch.tensor(value)


async def _score_later() -> float:
    await asyncio.sleep(0)
    return 1.0


returns_none = returns(lambda: None)
returns_int = returns(lambda: 1)
returns_bool = returns(lambda: True)
returns_float32 = returns(lambda: _numpy("float32", 0.5))
returns_float64 = returns(lambda: _numpy("float64", 0.5))
returns_array_of_no_dimension = returns(lambda: _numpy("array", 0.5))
returns_array = returns(lambda: _numpy("array", [0.5, 0.25]))
returns_torch = returns(lambda: _torch(0.5))
returns_decimal = returns(lambda: Decimal("0.5"))
returns_text = returns(lambda: "1.0")
returns_nan = returns(lambda: float("nan"))
returns_infinity = returns(lambda: float("inf"))
returns_1e300 = returns(lambda: 1e300)
returns_long_int = returns(lambda: 10**400)
returns_complex = returns(lambda: 1 + 2j)
returns_tuple = returns(lambda: (1.0, "good"))
returns_coroutine = returns(_score_later)


@_unless_good
def raises_value_error(completion: str) -> float:
    return float(completion)


@_unless_good
def raises_key_error(completion: str) -> float:
    return {"right": 1.0}[completion]


@_unless_good
def raises_attribute_error(completion: str) -> float:
    return cast("Any", completion).reward


@_unless_good
def raises_recursion_error(completion: str) -> float:
    return raises_recursion_error("", completion, "") + 1.0


@_unless_good
def raises_memory_error(completion: str) -> float:
    return float(len(bytearray(1 << 40)))


@_unless_good
def raises_keyboard_interrupt(completion: str) -> float:
    raise KeyboardInterrupt


@_unless_good
def raises_system_exit(completion: str) -> float:
    raise SystemExit(1)


@_unless_good
def raises_stop_iteration(completion: str) -> float:
    return next(iter([]))


@_unless_good
def raises_without_words(completion: str) -> float:
    raise _SilentError


@_unless_good
def raises_what_cannot_be_pickled(completion: str) -> float:
    raise _LocalError(threading.Lock())


@_unless_good
def reads_the_keyboard(completion: str) -> float:
    return float(input())


@_unless_good
def exits(completion: str) -> float:
    os._exit(3)


@_unless_good
def aborts(completion: str) -> float:
    os.abort()


@_unless_good
def crashes(completion: str) -> float:
    return float(len(ctypes.string_at(0)))


@_unless_good
def loops(completion: str) -> float:
    while True:
        pass


@_unless_good
def sleeps(completion: str) -> float:
    time.sleep(SECOND_S)
    return 1.0


@_unless_good
def waits_for_a_socket(completion: str) -> float:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.accept()
    return 1.0


@_unless_good
def waits_for_its_own_lock(completion: str) -> float:
    with _LOCK, _LOCK:
        return 1.0


@_unless_good
def prints_ten_megabytes(completion: str) -> float:
    print("x" * 10_000_000)  # noqa: T201 (the mistake)
    os.write(1, b"\xff" * 1000)
    return 1.0


@_unless_good
def leaks_memory(completion: str) -> float:
    _KEPT.append(bytearray(100_000_000))
    return 1.0


@_unless_good
def starts_what_outlives_it(completion: str) -> float:
    threading.Thread(target=time.sleep, args=(SECOND_S,)).start()
    return float(subprocess.Popen(["sleep", "60"]).pid)


@_unless_good
def forks_and_lets_the_copy_return(completion: str) -> float:
    return 1.0 if os.fork() else 0.0


@_unless_good
def changes_folder_environment_and_seed(completion: str) -> float:
    os.chdir("/")
    os.environ.clear()
    random.seed(0)
    return 1.0
