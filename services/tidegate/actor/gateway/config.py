"""The gateway's part of the actor's section."""

from typing import Annotated, Literal

import msgspec

from tidegate.core.errors import ConfigError

Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=86_400.0)]


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Agents in place of the built-in episodes, behind an OpenAI-compatible base URL.

    ``command``: the agent program, started once an episode with OPENAI_BASE_URL, OPENAI_API_KEY and TIDEGATE_TASK in
    its environment; empty hands episodes to agents that ask for them over HTTP (``POST /tidegate/episodes``), whose
    operator's key stands in the environment variable TIDEGATE_GATEWAY_KEY.
    ``pass_env``: names of this process' variables that the program may see beside PATH, HOME, LANG and TMPDIR.
    ``host``, ``port``: where it listens; actors of one machine take ``port`` plus their index, pods ``port`` itself; 0
    takes any free one, which only a program of ``command`` can find. There is no TLS here: keep it on the machine, in a
    cluster whose network you trust, or behind a proxy.
    ``models``: names it answers to; empty takes any name an agent asks for.

    ``reward``: ``posted`` by the program or its harness, which alone gets the episode's reward key and the answer;
    ``environment`` has the last reply scored by ``workload.env``.
    ``without_reward``: what an episode without one at its end is: ``zero``, or ``drop`` for its whole group.
    ``attempts``: times an episode is begun that ends without a call; one with calls is never begun again, because the
    policy has chosen in it.
    ``branches``: calls that do not extend their episode's longest conversation (parallel ones, a summarised history)
    are answered, counted and not trained with ``longest``; with ``fail`` such an episode ends as one without reward.
    ``sampling``: a call that asks for another temperature or top_p than the run's is refused with ``refuse``; with
    ``override`` the run's hold, unasked. One record has one sampler, so a call's own cannot.
    ``tool_calls``: how a model writes calls: ``hermes`` as JSON in <tool_call> tags, ``bracket`` as [argument] of the
    one declared tool with its one parameter, for alphabets without quotes.

    ``episode_deadline_s``: from its start to its reward; then the program is killed with its children. ``idle_s``:
    without a call, for agents of HTTP. ``claim_deadline_s``: until such an agent took an episode; then its task goes
    back. ``kill_grace_s``: from SIGTERM to SIGKILL.
    ``episodes_max``: open at once; the next ones wait. ``calls_max``: under way in one episode; the next is refused
    (429). ``turns_max``: calls of one episode; then refused. ``request_bytes_max``: of one call's body.
    ``choices_max``: ``n`` of one call.
    """

    command: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    models: tuple[str, ...] = ()
    reward: Literal["posted", "environment"] = "posted"
    without_reward: Literal["zero", "drop"] = "zero"
    attempts: Annotated[int, msgspec.Meta(ge=1, le=16)] = 2
    branches: Literal["longest", "fail"] = "longest"
    sampling: Literal["refuse", "override"] = "refuse"
    tool_calls: Literal["hermes", "bracket"] = "hermes"
    episode_deadline_s: Seconds = 300.0
    idle_s: Seconds = 60.0
    claim_deadline_s: Seconds = 60.0
    kill_grace_s: Annotated[float, msgspec.Meta(ge=0.0, le=60.0)] = 2.0
    episodes_max: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 64
    calls_max: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    turns_max: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 64
    request_bytes_max: Annotated[int, msgspec.Meta(ge=1024, le=67_108_864)] = 1_048_576
    choices_max: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8

    def __post_init__(self) -> None:
        """Refuse a gateway that no agent could find.

        Raises:
            ConfigError: agents are to come over HTTP, and the port is any free one.
        """
        if not self.command and self.port == 0:
            raise ConfigError(
                "actor.gateway has no command and no port",
                why="agents that come over HTTP need to know where",
                fix="set actor.gateway.port, or the program under actor.gateway.command",
            )
