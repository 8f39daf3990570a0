"""The calls that a thread makes into environments, as a watch in another thread sees them.

Both sides read and write attributes, which is atomic, so neither waits for the other.
"""

from collections.abc import Callable

from tidegate.vector_envs.faults import WHOLE_FORM, Call, Fault
from tidegate.vector_envs.guarded_port import Guarded


class EnvironmentCalls:
    """The calls of one thread into one vector of environments, from when it is made."""

    def __init__(self, env_id: str) -> None:
        self._env_id = env_id
        self._guarded: Guarded | None = None
        self._place: Callable[[], str] | None = None

    @property
    def running(self) -> bool:
        """Whether the thread is between ``begin`` and ``end``."""
        return self._place is not None

    def begin(self, place: Callable[[], str]) -> None:
        """Calls follow; ``place`` tells which, for the message of one that hangs."""
        self._place = place

    def use(self, guarded: Guarded | None) -> None:
        """The environments that are called; None while they are made."""
        self._guarded = guarded

    def end(self) -> None:
        """No call runs."""
        self._place = None

    def progress(self) -> object | None:
        """A value that changes with every call that returns; None while none runs."""
        place, guarded = self._place, self._guarded
        if place is None:
            return None
        return place() if guarded is None else (guarded.num_calls, guarded.call, guarded.copy)

    def hung(self, *, seconds: float) -> Fault:
        """The fault of the running call, which has not returned for so long."""
        place, guarded = self._place, self._guarded
        call: Call = "make" if guarded is None else guarded.call
        copy = WHOLE_FORM if guarded is None else guarded.copy
        where = f", in {place()}" if place is not None else ""
        return Fault("hung", self._env_id, copy, call, f"{seconds:.0f} s{where}")
