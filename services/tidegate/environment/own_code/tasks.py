"""The scorers of tasks of one's own: each in a pool of child processes, opened when it is first asked."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.environment.libraries.names import library_task_of
from tidegate.environment.own_code.pool import OwnCodePool, OwnCodeSettings
from tidegate.environment.tasks.port import TextTask
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
    """Pools by name, at most one for each registered task and for each of the run's own; ``close`` ends them."""

    def __init__(
        self,
        settings: OwnCodeSettings,
        *,
        own: Mapping[str, OwnReference] = MappingProxyType({}),
        env_of: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``own``: the run's own tasks, the only ones that are loaded by references: calls name no code.

        ``env_of``: what the run's names refer to; any other is a registered task's own.
        """
        self._settings = settings
        self._own = own
        self._env_of = env_of
        self._pools: dict[str, OwnCodePool] = {}
        self._turn = asyncio.Lock()

    def holds(self, name: str) -> bool:
        """Whether it is one of the run's own tasks."""
        return name in self._own

    def task_of(self, name: str) -> TextTask:
        """The task of this package with this name in the run.

        Raises:
            NotFoundError: there is none.
        """
        return get_task(self._env_of.get(name, name))

    async def pool_of(self, name: str) -> OwnCodePool | None:
        """The pool of a task; None for a task of this package, which needs none.

        Raises:
            NotFoundError: there is no such task.
            ConfigError: the task cannot be loaded in a process of its own.
        """
        if not self.holds(name) and self._env_of.get(name, name) in IN_PROCESS:
            return None
        async with self._turn:
            if name not in self._pools:
                pool = OwnCodePool(self._reference_of(name), self._settings)
                await pool.start()
                self._pools[name] = pool
            return self._pools[name]

    async def close(self) -> None:
        """End all processes."""
        for pool in self._pools.values():
            await pool.close()

    def _reference_of(self, name: str) -> OwnReference:
        """Of a task of the run's own; of a registered one its class, which the child makes an object of."""
        if self.holds(name):
            return self._own[name]
        kind = type(self.task_of(name))
        if "<locals>" in kind.__qualname__:
            raise ConfigError(
                f"Task {name!r} cannot be scored in a process of its own",
                why=f"its class {kind.__qualname__} is defined in a function",
                fix="define the class at the top of its module",
            )
        return OwnReference(self._env_of.get(name, name), kind.__module__, kind.__qualname__)
