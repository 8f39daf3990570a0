"""The scorers of tasks of one's own: each in a pool of child processes, opened when it is first asked."""

import asyncio

from tidegate.core.errors import ConfigError
from tidegate.environment.own_code.pool import OwnCodePool, OwnCodeSettings
from tidegate.environment.tasks.registry import IN_PROCESS, get_task


class OwnTasks:
    """Pools by environment, at most one for each registered task; ``close`` ends them."""

    def __init__(self, settings: OwnCodeSettings) -> None:
        self._settings = settings
        self._pools: dict[str, OwnCodePool] = {}
        self._turn = asyncio.Lock()

    async def pool_of(self, env_id: str) -> OwnCodePool | None:
        """The pool of a task; None for a task of this package, which needs none.

        Raises:
            NotFoundError: there is no such task.
            ConfigError: the task cannot be loaded in a process of its own.
        """
        if env_id in IN_PROCESS:
            return None
        async with self._turn:
            if env_id not in self._pools:
                pool = OwnCodePool(_reference_of(env_id), self._settings)
                await pool.start()
                self._pools[env_id] = pool
            return self._pools[env_id]

    async def close(self) -> None:
        """End all processes."""
        for pool in self._pools.values():
            await pool.close()


def _reference_of(env_id: str) -> str:
    """The class of a task, which the child makes an object of."""
    kind = type(get_task(env_id))
    if "<locals>" in kind.__qualname__:
        raise ConfigError(
            f"Task {env_id!r} cannot be scored in a process of its own",
            why=f"its class {kind.__qualname__} is defined in a function",
            fix="define the class at the top of its module",
        )
    return f"{kind.__module__}:{kind.__qualname__}"
