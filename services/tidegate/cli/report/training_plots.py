"""The curves of training in a report: what the learner measured at each update, over policy versions."""

from collections.abc import Mapping

import msgspec

from tidegate.cli.report.data import RunData
from tidegate.cli.report.figures import line_chart
from tidegate.cli.report.plot import Plot
from tidegate.core.lag_classes import LAG_CLASS_NAMES, mismatch_name

VERSION = "policy version"
# Metrics that no curve below names: those of an objective of one's own.
OTHERS_MAX = 12


class TrainingCurve(msgspec.Struct, frozen=True):
    """One chart: ``lines`` maps each line's name to a field or a metric of ``steps.jsonl``."""

    title: str
    caption: str
    lines: Mapping[str, str]
    percent: bool = False


CURVES = (
    TrainingCurve(
        "Training reward",
        "Mean reward of the completions in each update; they explore, and their prompts are those of training.",
        {"reward": "mean_reward"},
    ),
    TrainingCurve(
        "Loss",
        "What the optimiser minimised. Its level has no meaning of its own, as advantages are centred; jumps do.",
        {"loss": "loss", "policy": "policy_loss", "value": "value_loss"},
    ),
    TrainingCurve(
        "Entropy",
        "Nats of the distribution that actions or tokens are drawn from. Near zero nothing is explored.",
        {"entropy": "entropy"},
    ),
    TrainingCurve(
        "Effective samples and clipped share",
        "Share of the batch that counts after importance weights, and share whose gradient a clip or mask stopped.",
        {
            "effective samples": "ess",
            "clipped": "clipped_fraction",
            "truncated": "truncated_fraction",
            "value clipped": "value_clipped_fraction",
        },
        percent=True,
    ),
    TrainingCurve(
        "Divergence",
        "Nats per token or step: of the trained policy from the one that acted, and from the reference.",
        {"from the actors": "mismatch_kl", "from the reference": "reference_kl", "within the update": "kl"},
    ),
    TrainingCurve(
        "Mismatch by lag",
        "The divergence from the actors, by how many versions old a token or step was: at lag 0 it is the numerics of"
        " two engines, beyond it staleness.",
        {f"lag {name}": mismatch_name(name) for name in LAG_CLASS_NAMES},
    ),
    TrainingCurve(
        "Importance ratio",
        "Mean probability under the trained policy, divided by the one under the policy that acted; near 1.",
        {"ratio": "ratio_mean"},
    ),
    TrainingCurve(
        "Gradient norm",
        "Before it is scaled down to max_grad_norm.",
        {"norm": "grad_norm"},
    ),
    TrainingCurve(
        "Learning rate", "Of each update, after schedule and graded response.", {"rate": "learning_rate"}
    ),
    TrainingCurve(
        "Length of completions",
        "Tokens that the policy chose; at max_new_tokens completions are cut.",
        {"mean": "completion_tokens_mean", "longest": "completion_tokens_max"},
    ),
    TrainingCurve(
        "Tokens a second",
        "That updates compute, prompts included, on all ranks together and while they compute.",
        {"tokens/s": "update_tokens_per_s"},
    ),
    TrainingCurve(
        "Model FLOP utilisation",
        "Share of the GPUs' peak that updates reach: of the layers' operations alone, those computed again included.",
        {"MFU": "mfu"},
        percent=True,
    ),
    TrainingCurve(
        "Completions without a signal",
        "Share in groups whose rewards are equal: they teach nothing.",
        {"equal rewards": "zero_signal_fraction"},
        percent=True,
    ),
    TrainingCurve(
        "Critic",
        "Mean value estimate in units of reward, and mean size of the TD errors.",
        {"value": "value_mean", "TD error": "td_error_mean"},
    ),
    TrainingCurve(
        "Explained variance",
        "Share of the returns' variance that the critic explains; below 0 it is worse than their mean.",
        {"explained": "explained_variance"},
    ),
)
# Facts of an update that are no curve of training, or stand elsewhere in the report.
_NO_CURVE = frozenset(
    {
        *("reward_mean", "gradient_steps", "send_s", "reduce_s", "compute_s"),
        *("update_tokens", "text_tokens_mean"),
    }
)


def training_plots(run: RunData) -> list[Plot]:
    """A chart for each curve that the run has data for; metrics that no curve names have one each."""
    curves = (*CURVES, *_of_environments(run))
    named = {metric for curve in curves for metric in curve.lines.values()} | _NO_CURVE
    measured = {name for step in run.steps for name in step.get("metrics", {})}
    others = [
        TrainingCurve(name, "A metric of the objective.", {name: name}) for name in sorted(measured - named)
    ]
    found: list[Plot] = []
    for index, curve in enumerate((*curves, *others[:OTHERS_MAX])):
        series = {label: run.step_series(name, over="step") for label, name in curve.lines.items()}
        series = {label: points for label, points in series.items() if points}
        if series:
            svg = line_chart(f"training-{index}", series, x_label=VERSION, percent=curve.percent)
            found.append(Plot(curve.title, curve.caption, svg))
    return found


def _of_environments(run: RunData) -> list[TrainingCurve]:
    """Of a run with several: the reward of each, and what was trained of each."""
    envs = run.plan.file.workload.mixture
    if not envs:
        return []
    return [
        TrainingCurve(
            "Training reward by environment",
            "Mean reward of each environment's completions in each update that had any.",
            {env: f"reward.{env}" for env in envs},
        ),
        TrainingCurve(
            "Environments in each update",
            "Share of its completions; drawn by workload.envs' weights, less what was dropped.",
            {env: f"share.{env}" for env in envs},
            percent=True,
        ),
    ]
