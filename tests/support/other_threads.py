"""How long a call keeps every other thread of the process from running."""

import threading
import time
from collections.abc import Callable

ATTEMPTS = 3
TICK_S = 0.002


def longest_hold_cpu_s(call: Callable[[], object]) -> float:
    """The longest CPU time of the process in which another thread could not run, in the best of several attempts.

    By CPU time, because on a busy machine the other thread also waits while no thread of this process runs.
    """
    return min(_longest_hold(call) for _ in range(ATTEMPTS))


def _longest_hold(call: Callable[[], object]) -> float:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # raised below, where the test sees it
            errors.append(error)

    thread = threading.Thread(target=run)
    longest_s = 0.0
    before_s = time.process_time()
    thread.start()
    while thread.is_alive():
        time.sleep(TICK_S)
        now_s = time.process_time()
        longest_s, before_s = max(longest_s, now_s - before_s), now_s
    if errors:
        raise errors[0]
    return longest_s
