"""A run of several environments of which agents play some: the actor plays the others itself, on the same engine.

The worker of `verifiers` plays environments of that library alone. Tasks of all others are run as without a gateway, in
one turn or in several.
"""

from collections.abc import AsyncGenerator, Sequence

from tidegate.actor.engines.port import Completed
from tidegate.actor.gateway.runner import AgentRunner
from tidegate.actor.rollouts.episode_runner import EpisodeRunner
from tidegate.actor.rollouts.heldout import HeldOutProblem
from tidegate.actor.rollouts.outcomes import RolloutResult
from tidegate.actor.rollouts.served_policy import ServedPolicy
from tidegate.core.errors import UnavailableError
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Task


class MixedRunner:
    """As many tasks at once as the agents admit, of either kind."""

    def __init__(self, agents: AgentRunner, own: EpisodeRunner, *, served_policy: ServedPolicy) -> None:
        """``agents`` says which environments are played by them, ``own`` runs those of the others."""
        self.flows_max = agents.flows_max
        self.batch_max = 1
        self._agents = agents
        self._own = own
        self._served_policy = served_policy

    def run(self, tasks: Sequence[Task]) -> AsyncGenerator[RolloutResult]:
        """Run one task; a stopped one has no result."""
        [task] = tasks
        return self._agents.run(tasks) if self._agents.plays(task.env_id) else self._own.run(tasks)

    def stop(self) -> None:
        """Stop running rollouts; their tasks are released to other actors."""
        self._agents.stop()
        self._own.stop()

    def close(self) -> None:
        """Stop serving agents."""
        self._agents.close()
        self._own.close()

    async def complete(self, task: Task, problems: Sequence[HeldOutProblem]) -> Completed:
        """Answer held-out problems under one policy, which is held meanwhile, each by who plays its environment.

        Raises:
            UnavailableError: the actor is draining, an agent is missing, or the engine changed its policy.
        """
        theirs = [self._agents.plays(problem.env or task.env_id) for problem in problems]
        answers: dict[int, tuple[str, float | None]] = {}
        versions: set[PolicyVersion] = set()
        num_tokens = 0
        with self._served_policy.hold():
            for runner, is_theirs in ((self._own, False), (self._agents, True)):
                places = [place for place, each in enumerate(theirs) if each is is_theirs]
                if not places:
                    continue
                part = await runner.complete(task, [problems[place] for place in places])
                rewards = part.rewards or [None] * len(places)
                answers |= dict(zip(places, zip(part.completions, rewards, strict=True), strict=True))
                versions.add(part.version)
                num_tokens += part.num_tokens
        if len(versions) != 1:
            raise UnavailableError("The engine swapped its policy while it was held")
        in_order = [answers[place] for place in range(len(problems))]
        return Completed(
            version=versions.pop(),
            completions=[completion for completion, _ in in_order],
            num_tokens=num_tokens,
            rewards=[reward for _, reward in in_order],
        )
