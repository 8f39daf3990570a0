"""From an ended episode to a sample: its longest chain or all of them, and its reward."""

from collections.abc import Sequence

from tidegate.actor.engines.port import Sample
from tidegate.actor.gateway.chains import RecordedTurn, chains_to, spans_of, tensors_of
from tidegate.actor.gateway.config import GatewayConfig
from tidegate.actor.gateway.episodes import AgentEpisode
from tidegate.actor.gateway.groups import EpisodeGroup
from tidegate.actor.gateway.rewards import Reward
from tidegate.actor.rollouts.scoring import any_worker
from tidegate.catalogue import gateway as gateway_stats
from tidegate.core.cut_off import as_judged
from tidegate.core.errors import TidegateError, UnavailableError
from tidegate.models.tokenizer import Tokenizer
from tidegate.runtime.retrying import Backoff, UntilCancelled, retry
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.environment import Completion

BACKOFF = Backoff(start_s=0.2, max_s=2.0)


class NoRewardError(TidegateError):
    """An episode ended without a reward, and the run file drops its group for it."""

    status = "ABORTED"

    def __init__(self, what: str, *, why: str, num_steps: int) -> None:
        """``num_steps``: tokens that the policy had chosen."""
        super().__init__(what, why=why)
        self.num_steps = num_steps


class EpisodeJudge:
    """Builds samples from episodes; scores them at the environment where the run file demands it."""

    def __init__(self, context: ServiceContext, config: GatewayConfig, tokenizer: Tokenizer) -> None:
        self._context = context
        self._config = config
        self._tokenizer = tokenizer
        self._environment = any_worker(context)

    def check_group(self, group: EpisodeGroup, episode: AgentEpisode, *, why: str) -> None:
        """Refuse an ended member of a group that was claimed whole and cannot be trained whole. ``why``: it ended.

        Raises:
            UnavailableError: it is no fault of what the policy chose; the task is for another attempt.
            NoRewardError: the group has no score, and is dropped.
        """
        stats, task_id = self._context.stats, episode.task.task_id
        if group.worker_ended:
            raise UnavailableError(
                f"The worker that played the group of task {task_id} ended before it scored it",
                why=group.worker_ended,
                fix="see the worker's last words; the group is played again",
            )
        if not (group.has_calls if group.rewards is None else episode.recorder.num_turns):
            stats.add(gateway_stats.EPISODES_WITHOUT_CALLS)
            raise UnavailableError(
                f"An episode of task {task_id} ended without a call, and its group is scored together",
                why=why,
                fix="see the worker's last words; the group is played again",
            )
        if group.rewards is None:
            stats.add(gateway_stats.EPISODES_WITHOUT_REWARD, group.size)
            raise NoRewardError(
                "A group of episodes was not scored, and is dropped", why=why, num_steps=group.num_chosen
            )

    def check_worker(self, episode: AgentEpisode) -> None:
        """Refuse an ended episode whose worker's process has ended.

        Raises:
            UnavailableError: its worker ended, which is no fault of what the policy chose.
        """
        if episode.worker_ended:
            raise UnavailableError(
                f"The worker that played an episode of task {episode.task.task_id} ended before it rewarded it",
                why=episode.worker_ended,
                fix="see the worker's last words; the task is played again",
            )

    async def sample_of(self, episode: AgentEpisode, *, why: str) -> Sample:
        """The sample of an ended episode with at least one turn; ``why``: the reason of its end, for operators.

        Raises:
            NoRewardError: it has no reward, and the run file drops such episodes.
            TidegateError: the environment cannot score it.
        """
        trained = self._trained(episode)
        assert trained, "an episode to be judged has a turn"
        leaf, num_branches = trained[0], len(episode.recorder.leaves()) - 1
        self._context.stats.add(gateway_stats.BRANCHES_TRAINED, len(trained) - 1)
        self._context.stats.add(gateway_stats.BRANCHES_DROPPED, num_branches + 1 - len(trained))
        if num_branches and self._config.branches == "fail":
            why = f"{num_branches} of its calls do not extend its longest conversation"
            reward = self._without_reward(leaf, why=why)
        else:
            reward = (
                episode.reward or await self._scored(episode, leaf) or self._without_reward(leaf, why=why)
            )
        return self._sample(episode, trained, reward)

    def _trained(self, episode: AgentEpisode) -> list[RecordedTurn]:
        """The leaves of the chains that are trained, the longest first."""
        most = self._config.conversations_max if self._config.branches == "all" else 1
        return episode.recorder.longest_leaves(most)

    async def _scored(self, episode: AgentEpisode, leaf: RecordedTurn) -> Reward | None:
        """The environment's verdict on the last reply, however long it is unavailable; None where a harness judges."""
        if self._config.reward != "environment":
            return None
        task = episode.task
        reply = as_judged(self._tokenizer.decode(leaf.tokens), finish_reason=leaf.finish_reason)
        completion = Completion(task.prompt_id, task.prompt, task.answer, reply, task.curriculum_bin)
        [given] = await retry(
            lambda: self._environment.score(task.env_id, [completion]),
            BACKOFF,
            draining=UntilCancelled(),
            on_retry=lambda _failed: self._context.stats.add(gateway_stats.SCORE_RETRIES),
        )
        if given.failed:
            raise NoRewardError(
                "A verifier of an episode failed, and its group is dropped",
                why=given.log,
                num_steps=leaf.num_chosen,
            )
        return Reward(given.reward, given.components, given.log)

    def _without_reward(self, leaf: RecordedTurn, *, why: str) -> Reward:
        self._context.stats.add(gateway_stats.EPISODES_WITHOUT_REWARD)
        if self._config.without_reward == "drop":
            raise NoRewardError(
                "An episode ended without a reward, and its group is dropped",
                why=why,
                num_steps=leaf.num_chosen,
            )
        return Reward(0.0, {}, f"no reward: {why}"[:1024])

    def _sample(self, episode: AgentEpisode, trained: Sequence[RecordedTurn], reward: Reward) -> Sample:
        chains, longest = chains_to(trained), trained[0]
        return Sample(
            tensors=tensors_of(chains),
            spans=spans_of(chains),
            num_steps=sum(chain.num_chosen for chain in chains),
            completion=self._text(longest),
            finish_reason=longest.finish_reason,
            reward=reward.reward,
            components=reward.components,
            log=reward.log,
            tool_calls=tuple(episode.tool_calls),
        )

    def _text(self, leaf: RecordedTurn) -> str:
        """Turns and the text between them, as a person reads them."""
        path = leaf.path()
        decode = self._tokenizer.decode
        between = ["", *(decode(turn.given) for turn in path[1:])]
        return "".join(given + decode(turn.tokens) for given, turn in zip(between, path, strict=True))
