"""The options of a plan for a language model, as a request to ``core.sizing``."""

from pathlib import Path

from tidegate.cli.plan.options import BalanceOptions, ModelOptions, RolloutOptions
from tidegate.core.errors import ConfigError
from tidegate.core.sizing.accelerators import parse_gpus, parse_tokens
from tidegate.core.sizing.learner import WIDTHS, Training
from tidegate.core.sizing.plan import PlanRequest
from tidegate.core.sizing.shapes import SHAPES, ModelShape, shape_by_name
from tidegate.models.model_folder import shape_of_folder


def ask_model(options: ModelOptions, *, balance: BalanceOptions, rollouts: RolloutOptions) -> PlanRequest:
    """The request that the options describe.

    Raises:
        ConfigError: GPUs or length are missing or cannot be read, there is no such model, or options of a plan by
            rates were given as well.
    """
    if balance != BalanceOptions() or rollouts != RolloutOptions():
        raise ConfigError(
            "--model plans memory and rates from a model, and other options give rates",
            fix="leave out the options of Balance and Rollouts, or leave out --model",
        )
    if not options.gpus:
        raise ConfigError("--model needs --gpus", fix="give a number and a kind, as in --gpus 8xH100-80")
    return PlanRequest(
        training=Training(
            shape=_shape(options.model),
            length=parse_tokens(options.length),
            lora_rank=options.lora,
            width_bytes=WIDTHS[options.dtype],
            pass_tokens=options.pass_tokens,
            reference=options.reference,
        ),
        gpus=parse_gpus(options.gpus),
        mfu=options.mfu,
        usd_per_gpu_h=options.gpu_price,
        keep_versions=options.keep_versions,
        learner_gpus=options.learner_gpus,
    )


def _shape(model: str) -> ModelShape:
    if (shape := shape_by_name(model)) is not None:
        return shape
    if Path(model).is_dir():
        return shape_of_folder(Path(model))
    raise ConfigError(
        f"{model!r} is neither a folder nor a size that the planner knows",
        fix=f"give the folder of a model, or one of {', '.join(SHAPES)} (Qwen2.5)",
    )
