"""Settings that the algorithm of a run does not fit, or that only other algorithms read."""

from pathlib import Path

import pytest

from tests.unit.launch.test_run_file import RUNS, refusal
from tidegate.launch.run_file import read_run_file


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("learner.actor_critic.discount=0.9",), "set actor.actor_critic.discount instead"),
        (("learner.actor_critic.lambda=0.5",), "set actor.actor_critic.lambda instead"),
        (("actor.actor_critic.learning_rate=0.1",), "set learner.actor_critic.learning_rate instead"),
        (
            ("actor.actor_critic.entropy_anneal_updates=9", "learner.updates_per_version=2", "batch_size=2"),
            "2 times later",
        ),
    ],
)
def test_setting_of_gradients_in_the_section_that_no_service_reads_is_refused(
    overrides: tuple[str, ...], said: str
) -> None:
    assert said in refusal(*overrides, run=RUNS / "a3c.yaml")
    read_run_file(RUNS / "a3c.yaml", ["actor.actor_critic.discount=0.9", "learner.actor_critic.discount=0.9"])


def test_soft_actor_critic_trains_layers_of_ones_own_with_squashed_actions_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Net: ...\n")
    run = RUNS / "pendulum-sac.yaml"
    own = ("policy.kind=mine.py:Net", f"files_dir={tmp_path}", "learner.algorithm=sac")
    assert "only with policy.squash_actions" in refusal(*own, run=run)
    assert read_run_file(run, [*own, "policy.squash_actions=true"]).file.policy.family == "own"
