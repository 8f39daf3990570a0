"""The scorers of tasks of one's own: each in a pool of child processes, opened when it is first asked."""

import asyncio

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.environment.libraries.names import library_task_of
from tidegate.environment.own_code.pool import OwnCodePool, OwnCodeSettings
from tidegate.environment.tasks.registry import IN_PROCESS, TASKS, get_task
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.own_code.references import OwnReference, resolve


def own_task_of(workload: WorkloadConfig, *, folder: str) -> OwnReference | None:
    """Where a run's task of its own is; None for a task of this package. ``folder``: of the run file.

    Raises:
        ConfigError: there is no task of this name, in this package or elsewhere.
    """
    if (library := library_task_of(workload, folder=folder)) is not None:
        return library
    if workload.env in TASKS:
        return None
    found = resolve(workload.env, kind="tasks", folder=folder, known=TASKS)
    return msgspec.structs.replace(found, arguments=workload.env_kwargs)


class OwnTasks:
    """Pools by environment, at most one for each registered task and for the run's own; ``close`` ends them."""

    def __init__(self, settings: OwnCodeSettings, *, own: OwnReference | None = None) -> None:
        """``own``: the run's own task, the only one that is loaded by its reference: calls name no code."""
        self._settings = settings
        self._own = own
        self._pools: dict[str, OwnCodePool] = {}
        self._turn = asyncio.Lock()

    def holds(self, env_id: str) -> bool:
        """Whether it is the run's own task."""
        return self._own is not None and env_id == self._own.written

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
                pool = OwnCodePool(self._reference_of(env_id), self._settings)
                await pool.start()
                self._pools[env_id] = pool
            return self._pools[env_id]

    async def close(self) -> None:
        """End all processes."""
        for pool in self._pools.values():
            await pool.close()

    def _reference_of(self, env_id: str) -> OwnReference:
        """Of the run's own task; of a registered one its class, which the child makes an object of."""
        if self._own is not None and self.holds(env_id):
            return self._own
        kind = type(get_task(env_id))
        if "<locals>" in kind.__qualname__:
            raise ConfigError(
                f"Task {env_id!r} cannot be scored in a process of its own",
                why=f"its class {kind.__qualname__} is defined in a function",
                fix="define the class at the top of its module",
            )
        return OwnReference(env_id, kind.__module__, kind.__qualname__)
