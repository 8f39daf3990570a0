"""Which ranks are gone, when an exchange fails: the error of the exchange itself names none.

Every rank that notices the failure says so on a board that all of them share (the store in which they met). Those that
say nothing in time are dead, hang, or cannot be reached.
"""

import time
from collections.abc import Sequence
from typing import Protocol

# Ranks notice a closed connection within milliseconds of one another, and a timeout within a second.
NOTICE_WAIT_S = 3.0
POLL_S = 0.1
_NOTICED = "tidegate/noticed/"


class NoticeBoard(Protocol):
    """A key-value store of all ranks; ``torch.distributed.Store`` is one."""

    def set(self, key: str, value: str, /) -> None:
        """Write a value."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys have values."""
        ...


def lost_ranks(
    board: NoticeBoard, *, rank: int, count: int, wait_s: float = NOTICE_WAIT_S
) -> tuple[int, ...]:
    """The ranks that did not notice the failure within ``wait_s``, in order; rank 0 where the board is gone with it."""
    missing = [other for other in range(count) if other != rank]
    until_s = time.monotonic() + wait_s
    try:
        board.set(f"{_NOTICED}{rank}", "1")
        while True:
            missing = [other for other in missing if not board.check([f"{_NOTICED}{other}"])]
            if not missing or time.monotonic() >= until_s:
                return tuple(missing)
            time.sleep(POLL_S)
    except RuntimeError:  # raised by every store whose host does not answer; rank 0 is the host
        return (0,) if rank else ()


def named(ranks: Sequence[int]) -> str:
    """The lost ranks in words."""
    if not ranks:
        return "another one, which answers again"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
