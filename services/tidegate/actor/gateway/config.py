"""The gateway's part of the actor's section."""

from typing import Annotated, Literal

import msgspec

from tidegate.core.conversations import CONVERSATIONS_MAX
from tidegate.core.errors import ConfigError

OPERATOR_KEY_VARIABLE = "TIDEGATE_GATEWAY_KEY"
# Set where several actors share one address for claims: the host of this actor alone.
HOST_VARIABLE = "TIDEGATE_GATEWAY_HOST"
UnknownFields = Literal["refuse", "ignore"]
Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=86_400.0)]


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """External agents instead of the built-in episodes, behind an OpenAI-compatible base URL.

    ``command``: the agent program, started for each episode with OPENAI_BASE_URL, OPENAI_API_KEY and TIDEGATE_TASK in
    its environment; empty: agents request episodes over HTTP (``POST /tidegate/episodes``) with the key in the
    environment variable TIDEGATE_GATEWAY_KEY.
    ``workers``: so many run beside each gateway, and the command is a worker: each claims episodes over HTTP, up to
    TIDEGATE_WORKER_EPISODES at once, and is started again when it ends. Its environment holds TIDEGATE_GATEWAY_URL,
    TIDEGATE_GATEWAY_KEY, TIDEGATE_WORKER (its name) and TIDEGATE_WORKLOAD. No command: that of the library of
    ``workload.env``. 0: none.
    ``pass_env``: environment variables of this process that the program gets besides PATH, HOME, LANG and TMPDIR.
    ``host``, ``port``: where the gateway listens; actors of one machine use ``port`` plus their index, pods ``port``
    itself; 0: any free port, which only a program of ``command`` can find. There is no TLS here: keep it on the
    machine, in a cluster whose network you trust, or behind a proxy.
    ``models``: accepted model names; empty accepts any name.

    ``reward``: ``posted`` by the program or its harness, which alone gets the episode's reward key and the answer;
    ``environment``: ``workload.env`` scores the last reply.
    ``without_reward``: the result of an episode that ends without a reward: ``zero``, or ``drop`` for its whole group.
    ``attempts``: attempts at an episode that ends without a call; an episode with calls is never restarted, because
    the policy has made choices in it.
    ``branches``: of calls that do not extend their episode's longest conversation (parallel ones, a summarised
    history): ``longest`` answers and counts them and trains that conversation alone; ``all`` trains every conversation
    by the episode's reward, at most the ``conversations_max`` longest; with ``fail`` such an episode ends as one
    without reward.
    ``sampling``: for a call with another temperature or top_p than the run's: ``refuse`` it, or ``override`` it with
    the run's. One record has one sampler, so a call cannot have its own.
    ``unknown_fields``: of a call's body: ``refuse`` them, because an agent that sends one expects something of it, or
    ``ignore`` them, for clients that always send some. Fields that are known and not supported are refused in both.
    ``tool_calls``: the format of the model's calls: ``hermes`` as JSON in <tool_call> tags, ``bracket`` as [argument]
    of the one declared tool with its one parameter, for alphabets without quotes.

    ``episode_deadline_s``: from the start of an episode to its reward; then the program and its children are killed.
    ``idle_s``: seconds without a call, for agents over HTTP. ``claim_deadline_s``: until an agent claims an episode;
    then its task is released. ``kill_grace_s``: from SIGTERM to SIGKILL.
    ``episodes_max``: open episodes; further tasks wait. ``calls_max``: calls in flight in one episode; the next is
    refused (429). ``turns_max``: calls of one episode; then refused. ``request_bytes_max``: of one call's body.
    ``choices_max``: ``n`` of one call.
    """

    command: tuple[str, ...] = ()
    workers: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    pass_env: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    models: tuple[str, ...] = ()
    reward: Literal["posted", "environment"] = "posted"
    without_reward: Literal["zero", "drop"] = "zero"
    attempts: Annotated[int, msgspec.Meta(ge=1, le=16)] = 2
    branches: Literal["longest", "all", "fail"] = "longest"
    conversations_max: Annotated[int, msgspec.Meta(ge=1, le=CONVERSATIONS_MAX)] = 16
    sampling: Literal["refuse", "override"] = "refuse"
    unknown_fields: UnknownFields = "refuse"
    tool_calls: Literal["hermes", "bracket"] = "hermes"
    episode_deadline_s: Seconds = 300.0
    idle_s: Seconds = 60.0
    claim_deadline_s: Seconds = 60.0
    claim_wait_s: Annotated[float, msgspec.Meta(ge=0.0, le=300.0)] = 30.0
    kill_grace_s: Annotated[float, msgspec.Meta(ge=0.0, le=60.0)] = 2.0
    episodes_max: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 64
    calls_max: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    turns_max: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 64
    request_bytes_max: Annotated[int, msgspec.Meta(ge=1024, le=67_108_864)] = 1_048_576
    choices_max: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8

    def __post_init__(self) -> None:
        """Refuse a gateway that no agent can reach.

        Raises:
            ConfigError: agents connect over HTTP, and the port is any free one.
        """
        if not self.command and not self.workers and self.port == 0:
            raise ConfigError(
                "actor.gateway has no command and no port",
                why="agents over HTTP need a fixed port",
                fix="set actor.gateway.port, or the program under actor.gateway.command",
            )

    @property
    def has_library_worker(self) -> bool:
        """Whether its workers are those of the library of ``workload.env``."""
        return self.workers > 0 and not self.command
