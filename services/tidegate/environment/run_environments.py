"""The text environments of a run, by their names in records and calls."""

from types import MappingProxyType

import msgspec

from tidegate.environment.own_code.tasks import own_task_of
from tidegate.environment.state import ProblemOf
from tidegate.environment.tasks.port import Problem
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.prompt_sources import bin_in_env


class RunEnvironments:
    """What each name refers to: a task of this package, or code of one's own."""

    def __init__(self, workload: WorkloadConfig, *, folder: str) -> None:
        """``folder``: of the run file. Segments have none.

        Raises:
            ConfigError: there is no such task.
        """
        parts = workload.by_name() if workload.kind == "text" else {}
        self._is_mixture = bool(workload.envs)
        self.env_of = MappingProxyType({name: part.env for name, part in parts.items()})
        found = {name: own_task_of(part, folder=folder) for name, part in parts.items()}
        self.own = MappingProxyType({name: own for name, own in found.items() if own is not None})

    @property
    def problem_of(self) -> ProblemOf | None:
        """Takes away what tells the bins of several environments apart; None where there is one."""
        return _problem_of if self._is_mixture else None


def _problem_of(name: str, problem: Problem) -> Problem:
    return msgspec.structs.replace(problem, bin=bin_in_env(name, problem.bin))
