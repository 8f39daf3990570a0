import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import ConfigError
from tidegate.core.targets import parse_target
from tidegate.launch.cross_checks import check_target
from tidegate.launch.overrides import apply_overrides, parse_yaml
from tidegate.launch.own_code import own_code_of
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_parsing import parse_plan
from tidegate.learner.algorithm import ALGORITHMS, AlgorithmEntry

RUNS = Path(__file__).parents[3] / "runs"
CARTPOLE = RUNS / "cartpole.yaml"
TEXT: dict[str, Any] = {
    "run": "sums",
    "workload": {"kind": "text", "env": "arithmetic", "num_samples": 8, "sampler": {"max_new_tokens": 4}},
    "policy": {"kind": "char_lm", "context_length": 12},
    "batch_size": 64,
    "max_running": 128,
}


def refusal(*overrides: str, run: Path = CARTPOLE) -> str:
    with pytest.raises(ConfigError) as raised:
        read_run_file(run, list(overrides))
    return str(raised.value)


def refusal_of_text(*overrides: str) -> str:
    with pytest.raises(ConfigError) as raised:
        parse_plan(apply_overrides(TEXT, list(overrides)), source="sums.yaml")
    return str(raised.value)


@pytest.mark.parametrize("path", sorted(RUNS.glob("*.yaml")), ids=lambda path: path.name)
def test_run_file_of_the_house_holds_together(path: Path) -> None:
    plan = read_run_file(path, [])
    assert plan.file.run == path.stem


@pytest.mark.parametrize("path", sorted(RUNS.parent.glob("examples/*/run.yaml")), ids=str)
def test_run_file_of_an_example_holds_together_and_finds_its_code(path: Path) -> None:
    named = {
        "mixture": {"workload.envs.reverse", "workload.envs.next"},
        "own_environment": {"workload.env"},
        "functions": set[str](),
    }
    assert set(own_code_of(read_run_file(path, []))) == named[path.parent.name]


@pytest.mark.parametrize("path", sorted(RUNS.glob("*.yaml")), ids=lambda path: path.name)
def test_document_with_every_default_reads_back_as_the_same_plan(path: Path) -> None:
    plan = read_run_file(path, ["actor.replicas=3"])
    assert parse_plan(plan.document(), source="run.json") == plan
    assert plan.replicas["actor"] == 3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("admission.scaling.min_replicas=20",),
            "admission.scaling: min_replicas 20 is above max_replicas 16: swap them",
        ),
        (
            ("admission.scaling.stabilise_out_s=400",),
            "admission.scaling: stabilise_in_s must be at least stabilise_out_s",
        ),
    ],
)
def test_reason_that_a_section_gives_itself_is_kept(overrides: tuple[str, ...], message: str) -> None:
    found = refusal(*overrides)
    assert message in found
    assert "a section with" not in found


def test_typo_names_the_nearest_key_and_where_it_stands() -> None:
    message = refusal("staleness.max_lagg=2")
    assert "unknown field `max_lagg` in staleness: did you mean `max_lag`?" in message
    assert "cartpole.yaml" in message


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("learnr.threads=1", "did you mean `learner`?"),
        ("batchsize=2", "did you mean `batch_size`?"),
        ("actor.replica=2", "unknown field `replica` in actor: did you mean `replicas`?"),
        (
            "workload.sampler.temprature=1",
            "unknown field `temprature` in workload.sampler: did you mean `temperature`?",
        ),
        ("learner.actor_critic.lr=0.1", "Known here are objective, discount, lambda"),
    ],
)
def test_typo_is_named_at_every_depth(override: str, hint: str) -> None:
    assert hint in refusal(override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("staleness.max_lag=-1", "staleness.max_lag is -1; it must be a whole number >= 0"),
        ("staleness.max_age_s=0", "staleness.max_age_s is 0; it must be a number > 0"),
        ("staleness.max_lag=four", "staleness.max_lag is 'four'; it must be a whole number >= 0"),
        ("staleness.max_lag=1.5", "staleness.max_lag is 1.5; it must be a whole number"),
        ("policy.hidden=[64,0]", "policy.hidden.1 is 0; it must be a whole number >= 1"),
        ("policy.hidden=64", "policy.hidden is 64; it must be a list, each a whole number >= 1"),
        ("policy.kind=tree", "policy.kind: There is no 'tree' among the policies"),
        ("actor.replicas=0", "actor.replicas is 0; it must be a whole number >= 1 and <= 256"),
        ("run=Cart_Pole", "run is 'Cart_Pole'; it must be a text of 1-40 lower-case letters"),
        ("environment.rewards={task: yes}", "environment.rewards.task is True; it must be a number >= -1000"),
        ("workload=3", "workload is 3; it must be a section with kind, env"),
        ("learner=[]", "learner is []; it must be a section with"),
        ("batch_size=", "batch_size is empty; it must be a whole number >= 1"),
    ],
)
def test_value_out_of_range_or_type_is_shown_with_what_is_allowed(override: str, message: str) -> None:
    assert message in refusal(override)


@pytest.mark.parametrize(
    ("wrappers", "message"),
    [
        (
            "[{name: GreyObservation}]",
            "wrappers.0.name is 'GreyObservation'; it must be one of FilterObservation,",
        ),
        ("[ClipAction]", "wrappers.0 is 'ClipAction'; it must be a section whose `name` is one of"),
        ("[{}]", "`workload.wrappers.0.name` is missing. it must be one of FilterObservation,"),
        (
            "[{name: RescaleAction, min_action: 0}]",
            "`workload.wrappers.0.max_action` is missing. it must be a number",
        ),
        (
            "[{name: FlattenObservation}, {name: ReshapeObservation, shapes: [2]}]",
            "unknown field `shapes` in workload.wrappers.1: did you mean `shape`?",
        ),
        (
            "[{name: ReshapeObservation, shape: [0]}]",
            "wrappers.0.shape.0 is 0; it must be a whole number >= 1",
        ),
    ],
)
def test_a_wrapper_is_held_to_the_arguments_of_its_kind(wrappers: str, message: str) -> None:
    assert message in refusal(f"workload.wrappers={wrappers}")


@pytest.mark.parametrize("setting", ["frame_stack=4", "reward.scale=0.1"])
def test_text_has_no_settings_of_environments_that_are_stepped(setting: str) -> None:
    assert "is set with workload.kind text" in refusal_of_text(f"workload.{setting}")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("policy.chat={system_prompt: Be brief.}", "policy.chat is set with policy.kind char_lm"),
        ("policy.chat.template_args={tools: []}", "template_args"),
        ("policy.chat.template_args={tokenize: true}", "the platform sets it"),
    ],
)
def test_settings_of_a_chat_template_are_held_to_what_a_template_takes(setting: str, said: str) -> None:
    assert said in refusal_of_text(setting)


def test_a_sign_of_rewards_is_not_scaled() -> None:
    assert "reward.sign is set with another change" in refusal("workload.reward={sign: true, clip: 1}")


def test_missing_key_is_named_with_what_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text(re.sub(r"batch_size: \d+\n", "", CARTPOLE.read_text(encoding="utf-8")), encoding="utf-8")
    assert "`batch_size` is missing" in refusal(run=path)
    path.write_text("run: a\nworkload: {kind: segments}\n", encoding="utf-8")
    assert "`workload.env` is missing. it must be a text" in refusal("policy.kind=mlp", run=path)


def test_file_that_is_not_there_or_no_mapping_says_so(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(run=tmp_path / "none.yaml")
    empty = tmp_path / "empty.yaml"
    empty.write_text("# nothing\n", encoding="utf-8")
    assert "holds no settings" in refusal(run=empty)


def test_broken_yaml_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("run: a\nworkload: {kind: segments\n", encoding="utf-8")
    assert re.search(r"broken\.yaml, line \d is not valid YAML", refusal(run=path))


def test_key_given_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("run: a\nseed: 1\nrun: b\n", encoding="utf-8")
    assert "Key `run` is given twice, in line 1 and in line 3" in refusal(run=path)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("policy.path=''", "names no model"),
        ("policy.kind=mlp", "The auto engine cannot run mlp on text"),
        ("learner.language_model.objective=ppo", "objective ppo needs a critic"),
        ("actor.engine=text_generation", "text_generation runs char_lm on text in one turn"),
    ],
)
def test_language_models_that_cannot_be_run_or_trained_are_refused(override: str, reason: str) -> None:
    assert reason in refusal(override, run=RUNS / "smollm2.yaml")


def test_python_objects_in_yaml_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.yaml"
    path.write_text("run: !!python/object/apply:os.getcwd []\n", encoding="utf-8")
    assert "not valid YAML" in refusal(run=path)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("policy.kind=char_lm", "The auto engine cannot run char_lm on segments"),
        ("workload.num_samples=2", "a segment is one trajectory"),
        (
            "actor.engine=text_generation",
            "set actor.engine to auto, and policy.kind to a network of this workload",
        ),
        ("long_tail.cap_quantile=0.95", "a segment has a fixed length and no group"),
        ("long_tail.early_stop_after=2", "a segment has a fixed length and no group"),
        ("workload.latency=gauss:1", "workload.latency: 'gauss:1' is no distribution of times"),
        ("workload.latency={easy: 'exp:-1'}", "-1 is no time in seconds"),
        ("learner.precision=bfloat16", "only convolutions are computed in it"),
        ("learner.updates_per_version=3", "set batch_size to 3"),
        ("staleness.max_lag=1025", "set staleness.max_lag to 1024 or less"),
        ("trajectory_store.replay.unit=transition", "actor_critic trains whole trajectories"),
    ],
)
def test_settings_that_cannot_work_together_are_refused_with_the_reason(override: str, reason: str) -> None:
    assert reason in refusal(override)


def test_store_without_room_for_a_batch_is_refused() -> None:
    overrides = ("batch_size=2", "trajectory_store.max_resident_trajectories=1")
    assert "the learner would wait forever" in refusal(*overrides)


def test_a2c_makes_one_update_of_its_data() -> None:
    overrides = (
        "batch_size=2",
        "learner.updates_per_version=2",
        "learner.actor_critic={objective: a2c, epochs: 1, minibatches: 1}",
    )
    assert "only the first update is of the policy that its data came from" in refusal(*overrides)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("batch_size=60", "set batch_size to 56 or 64"),
        ("batch_size=4", "set batch_size to 8 or 8"),
        ("max_running=7", "none would ever be admitted"),
        ("actor={gateway: {port: 8900}, engine: text_generation}", "engine writes no tokens one by one"),
        ("workload.sampler.max_new_tokens=12", "leaves no room for a prompt"),
        ("policy.num_heads=3", "set policy.d_model to 63"),
        ("learner.updates_per_version=16", "set batch_size to 128"),
        ("long_tail.early_stop_after=1", "one sample shows no difference"),
        ("long_tail.early_stop_after=8", "there is nothing left to stop"),
    ],
)
def test_settings_of_groups_that_would_wait_for_ever_are_refused(override: str, reason: str) -> None:
    assert reason in refusal_of_text(override)


PRETRAINED = "policy={kind: transformers, path: /models/base, context_length: 64}"


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("learner.warmup.patience=5",), "learner.warmup.patience is set with policy.kind char_lm"),
        (
            (PRETRAINED, "learner.warmup.stop_at_solved=0.3"),
            "learner.warmup.stop_at_solved is set with policy.kind transformers",
        ),
        (
            (PRETRAINED, "learner.warmup.demonstrations=task", "begin_from=runs/parent"),
            "learner.warmup.demonstrations is set with begin_from",
        ),
    ],
)
def test_settings_of_another_policy_s_warm_up_are_refused(overrides: tuple[str, ...], reason: str) -> None:
    assert reason in refusal_of_text(*overrides)


def test_only_layers_of_one_s_own_say_that_they_make_values() -> None:
    assert "policy.action_values is set with policy.kind mlp" in refusal("policy.action_values=true")


def test_segments_are_not_warmed_up() -> None:
    assert "only language models are warmed up" in refusal("learner.warmup.demonstrations=task")


@pytest.mark.parametrize(
    ("run", "overrides", "target", "problem"),
    [
        (CARTPOLE, ["task_queue.evaluation_every_versions=5"], "evaluation_return>=475", ""),
        (CARTPOLE, [], "evaluation_return>=475", "without evaluations"),
        (CARTPOLE, [], "mean_return>=475", ""),
        (CARTPOLE, ["task_queue.evaluation_every_versions=5"], "solved_share>=0.5", "use evaluation_return"),
        (RUNS / "arithmetic.yaml", [], "solved_share>=0.5", ""),
        (RUNS / "arithmetic.yaml", [], "evaluation_return>=0.5", "use solved_share"),
        (RUNS / "arithmetic.yaml", [], "mean_return>=1", "no episodes"),
        (
            RUNS / "arithmetic.yaml",
            ["task_queue.evaluation_every_versions=0"],
            "solved_share>=0.5",
            "without evaluations",
        ),
    ],
)
def test_target_is_refused_where_no_service_can_reach_it(
    run: Path, overrides: list[str], target: str, problem: str
) -> None:
    plan = read_run_file(run, overrides)
    found = check_target(parse_target(target), plan.file, plan.services)
    assert problem in str(found) if problem else found is None


@pytest.mark.parametrize("setting", ["staleness.max_age_s", "workload.env_kwargs.most", "slos.age_p95.bound"])
def test_infinity_which_the_files_of_a_run_cannot_hold_is_refused(setting: str) -> None:
    assert f"{setting} is not a finite number" in refusal(f"{setting}=.inf")


def test_override_is_typed_as_in_the_file() -> None:
    plan = read_run_file(
        CARTPOLE,
        [
            "staleness.max_lag=0",
            "policy.hidden=[32, 16]",
            "until=''",
            "learner.actor_critic.learning_rate=1e-3",
        ],
    )
    assert plan.file.staleness.max_lag == 0
    assert plan.file.policy.hidden == (32, 16)
    assert plan.services["learner"].actor_critic.learning_rate == 1e-3


@pytest.mark.parametrize("override", ["staleness.max_lag", "=3", "a..b=1", ".a=1"])
def test_override_without_path_or_value_is_refused_with_an_example(override: str) -> None:
    assert "--set staleness.max_lag=0" in refusal(override)


def test_override_through_a_plain_value_is_refused() -> None:
    assert "`seed` is a value and has no fields" in refusal("seed.x=1")


def test_overrides_leave_the_document_they_are_applied_to_alone() -> None:
    raw = {"a": {"b": 1}}
    assert apply_overrides(raw, ["a.b=2", "a.c=3"]) == {"a": {"b": 2, "c": 3}}
    assert raw == {"a": {"b": 1}}


@given(st.floats(min_value=1e-12, max_value=1e12))
def test_numbers_in_scientific_notation_are_numbers(value: float) -> None:
    assert parse_yaml(f"{value:e}", source="test") == pytest.approx(value, rel=1e-5)
    assert parse_yaml("1e-3", source="test") == 0.001
    assert parse_yaml("e3", source="test") == "e3"


@given(st.text(max_size=40))
def test_any_text_is_a_value_or_a_config_error(text: str) -> None:
    # Whatever else it raises fails the test.
    with contextlib.suppress(ConfigError):
        apply_overrides({}, [f"key={text}"])


@pytest.mark.parametrize(
    ("override", "run"), [("policy.memory=gru", "a3c.yaml"), ("policy.memory=gru", "arithmetic.yaml")]
)
def test_memory_that_nothing_would_unroll_is_refused(override: str, run: str) -> None:
    assert "policy.memory gru is set with" in refusal(override, run=RUNS / run)


REPLAYED = (
    "trajectory_store.replay={unit: transition, min_fill: 1000, uses_max: 0}",
    "max_running=4",
    "staleness.max_lag=100000",
)


@pytest.fixture
def replaying(monkeypatch: pytest.MonkeyPatch) -> None:
    """An algorithm of replay for the policy of the run file."""
    monkeypatch.setitem(ALGORITHMS, "actor_critic", AlgorithmEntry(("mlp",), replay="transition"))


@pytest.mark.usefixtures("replaying")
def test_algorithm_of_replay_runs_with_a_store_that_gives_its_unit_at_any_lag() -> None:
    assert read_run_file(CARTPOLE, list(REPLAYED)).file.staleness.max_lag == 100_000
    assert "set trajectory_store.replay.unit to transition" in refusal()
    assert "set trajectory_store.replay.unit to transition" in refusal(
        "trajectory_store.replay.unit=sequence"
    )


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("trajectory_store.replay.capacity=1000", "leaves no room for a trajectory"),
        ("trajectory_store.replay={unit: transition, samples_per_insert: 8, uses_max: 2}", "is above"),
        ("trajectory_store.replay={unit: transition, samples_per_insert: 1, slack: 1}", "slack"),
        ("response.hard_sync.every_versions=10", "nothing is fresh to wait for"),
        ("response.goodput.enabled=true", "nothing is fresh to wait for"),
    ],
)
def test_replay_that_could_only_stand_still_is_refused_before_anything_starts(
    override: str, reason: str
) -> None:
    assert reason in refusal(*REPLAYED, override)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("trajectory_store.replay.n_steps=5", "set actor.q_learning.n_steps to 5"),
        ("learner.q_learning.discount=0.9", "set actor.q_learning.discount to 0.9"),
        ("learner.q_learning.value_rescaling=true", "set actor.q_learning.value_rescaling to True"),
        ("workload.reward.normalise=true", "normalise is set with trajectory_store.replay"),
        ("trajectory_store.replay={}", "set trajectory_store.replay.unit to transition"),
        ("policy.memory=gru", "policy.memory gru is set with policy.kind q_mlp"),
        ("actor.engine=gradient_env", "gradient_env engine cannot run q_mlp"),
        ("learner.algorithm=actor_critic", "cannot train a policy of the kind q_mlp"),
    ],
)
def test_q_learning_that_contradicts_itself_is_refused(override: str, reason: str) -> None:
    assert reason in refusal(override, run=RUNS / "apex.yaml")


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("workload.reward.normalise=true", "normalise is set with trajectory_store.replay"),
        ("trajectory_store.replay={}", "set trajectory_store.replay.unit to transition"),
        ("trajectory_store.replay.unit=sequence", "set trajectory_store.replay.unit to transition"),
        ("policy.memory=gru", "policy.memory gru is set with policy.kind squashed_mlp"),
        ("policy.kind=mlp", "learner.algorithm actor_critic trains whole trajectories"),
        ("learner.algorithm=actor_critic", "cannot train a policy of the kind squashed_mlp"),
        ("learner.updates_per_version=3", "no multiple of learner.updates_per_version 3"),
        ("learner.sac.discount=1.0", "learner.sac.discount is 1.0"),
    ],
)
def test_soft_actor_critic_that_contradicts_itself_is_refused(override: str, reason: str) -> None:
    assert reason in refusal(override, run=RUNS / "pendulum-sac.yaml")


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("actor.q_learning.sequence_period=8", "set actor.q_learning.sequence_period to 16"),
        ("workload.unroll_length=72", "to a divisor of 72"),
        (
            "learner.q_learning.sequences.burn_in=40",
            "set trajectory_store.replay.sequence_length to 56 or more",
        ),
        ("trajectory_store.replay.sequence_length=31", "leaves 15 steps of"),
        ("trajectory_store.replay.sequence_length=40", "set actor.q_learning.sequence_length to 40"),
        ("actor.q_learning.burn_in=0", "set actor.q_learning.burn_in to 16"),
        ("actor.q_learning.n_steps=3", "set actor.q_learning.n_steps to 5"),
        ("actor.q_learning.value_rescaling=false", "set actor.q_learning.value_rescaling to True"),
        (
            "learner.q_learning.sequences.priority_max_share=1.0",
            "set actor.q_learning.priority_max_share to 1.0",
        ),
        ("trajectory_store.replay.unit=transition", "set trajectory_store.replay.unit to sequence"),
        ("policy.memory=none", "set policy.memory to gru or lstm"),
        ("learner.algorithm=auto", "q_learning trains on units of replay"),
        ("policy.kind=cnn", "cannot train a policy of the kind cnn"),
    ],
)
def test_learning_from_sequences_that_contradicts_itself_is_refused(override: str, reason: str) -> None:
    assert reason in refusal(override, run=RUNS / "r2d2.yaml")
