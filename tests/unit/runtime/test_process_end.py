"""A process that ends without its interpreter being taken apart."""

import subprocess
import sys

PROGRAM = """
import atexit, threading, time
from tidegate.runtime.process_end import end_process
threading.Thread(target=time.sleep, args=(1000,)).start()
atexit.register(print, "taken apart")
print("said", end="")
end_process(3)
"""


def test_a_process_ends_with_what_it_printed_whatever_its_threads_do() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60.0, check=False
    )
    assert (ended.returncode, ended.stdout) == (3, "said")
