"""Groups of episodes that one worker plays and scores together, for verdicts that compare the samples of a task.

A task is held by one actor, and all of its episodes are open at one gateway: so a group needs no message to anybody. It
is claimed whole, by one process, and rewarded whole, in one post: at no moment some of its members have a reward while
others wait for one. A group that its worker did not reward is not trained.
"""

import secrets
from collections.abc import Mapping

from tidegate.actor.gateway.episodes import KEY_PREFIX, SECRET_BYTES, AgentEpisode
from tidegate.actor.gateway.errors import RefusedCallError
from tidegate.actor.gateway.rewards import NoReward, Reward
from tidegate.core.errors import ConflictError


class EpisodeGroup:
    """The episodes of one task, or one episode of an evaluation. Members join when they are offered for a claim.

    ``rewards``: by episode id, once its worker posted them.
    """

    def __init__(self, *, size: int) -> None:
        """``size``: episodes that belong to it."""
        self.group_id = secrets.token_hex(8)
        self.reward_key = f"{KEY_PREFIX}-{self.group_id}-{secrets.token_hex(SECRET_BYTES)}"
        self.size = size
        self.is_claimed = False
        self.rewards: dict[str, Reward | NoReward] | None = None
        self.num_offered = 0
        self.offered_at_s = 0.0
        self._members: dict[str, AgentEpisode] = {}

    @property
    def members(self) -> list[AgentEpisode]:
        """Those that wait for a claim, or were claimed with the others, in the order of their samples."""
        return sorted(self._members.values(), key=lambda episode: episode.sample_index)

    @property
    def is_whole(self) -> bool:
        """Whether all of its members wait for a claim."""
        return len(self._members) == self.size

    @property
    def has_calls(self) -> bool:
        """Whether the policy chose anything in it."""
        return any(episode.recorder.num_turns for episode in self._members.values())

    @property
    def num_chosen(self) -> int:
        """Tokens that the policy chose in the longest conversation of its members."""
        leaves = [episode.recorder.longest() for episode in self._members.values()]
        return max((leaf.num_chosen for leaf in leaves if leaf is not None), default=0)

    @property
    def num_in_flight(self) -> int:
        """Calls of its members that are being answered."""
        return sum(episode.num_in_flight for episode in self._members.values())

    @property
    def used_at_s(self) -> float:
        """When a member was used last, in monotonic seconds: one that ended early waits for the others."""
        return max((episode.used_at_s for episode in self._members.values()), default=0.0)

    @property
    def worker_ended(self) -> str:
        """Why the process that played it will never reward it; empty otherwise."""
        return next((each.worker_ended for each in self._members.values() if each.worker_ended), "")

    def join(self, episode: AgentEpisode, *, now_s: float) -> None:
        """A member is offered; ``now_s``: monotonic seconds."""
        self._members[episode.episode_id] = episode
        self.num_offered += 1
        self.offered_at_s = now_s

    def leave(self, episode: AgentEpisode) -> None:
        """A member was claimed alone, or closed before a claim; those of a group that was claimed whole remain."""
        if not self.is_claimed:
            self._members.pop(episode.episode_id, None)

    def claim(self, *, worker: str, now_s: float) -> None:
        """Give all members to one worker."""
        self.is_claimed = True
        for episode in self._members.values():
            episode.claim(worker=worker, now_s=now_s)

    def give_rewards(self, rewards: Mapping[str, Reward | NoReward]) -> None:
        """Reward every member at once and end them. ``rewards``: by episode id.

        Raises:
            ConflictError: a member has ended; none is rewarded.
            RefusedCallError: these are not the group's episodes; none is rewarded.
        """
        num_ended = sum(episode.ended.is_set() for episode in self._members.values())
        if num_ended:
            raise ConflictError(
                f"Group {self.group_id} has ended",
                why=f"{num_ended} of its {self.size} episodes have",
                fix="post the rewards of a group once, before its deadline",
            )
        if rewards.keys() != self._members.keys():
            raise RefusedCallError(
                f"These are not the rewards of group {self.group_id}",
                param="rewards",
                why=f"{len(rewards.keys() & self._members.keys())} of its {self.size} episodes are named",
                fix="name each episode of the claim, with the reason for one without a reward",
            )
        self.rewards = dict(rewards)
        for name, episode in self._members.items():
            reward = rewards[name]
            if isinstance(reward, NoReward):
                episode.end(because=reward.why)
            else:
                episode.give_reward(reward)

    def end(self, *, because: str = "") -> None:
        """End all members, without a reward where they have none."""
        for episode in self._members.values():
            episode.end(because=because)
