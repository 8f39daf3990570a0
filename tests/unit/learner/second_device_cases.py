"""Every path of the learner with its parameters on a second device, by which a forgotten ``device`` shows.

The second device computes what the CPU does (``tests.support.second_device``), but for the order of some sums.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.second_device import AccelTensor, MixedDevicesError, second_device
from tests.unit.learner import test_fine_tune as fine_tuned
from tests.unit.learner.optim import test_applied_gradients as gradients
from tests.unit.learner.optim import test_images as images
from tests.unit.learner.optim import test_q_learner as q_learning
from tests.unit.learner.optim import test_r2d2 as r2d2
from tests.unit.learner.ranks import test_equality as shared
from tests.unit.learner.ranks.tape import Tape
from tests.unit.learner.test_warmup import EXAMPLES, HELDOUT, make_model
from tests.unit.models.tiny_llama import make_folder, open_model
from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.learner.algorithm import AlgorithmName
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.learner.optim.registry import TRAINERS
from tidegate.learner.ranks.agreement import check_same_state
from tidegate.learner.ranks.following import follow
from tidegate.learner.ranks.leading import LeadingTrainer
from tidegate.learner.ranks.port import ALONE, SharedTrainer
from tidegate.learner.warmup import WarmupError, WarmupProgress, fine_tune, supervised_warmup
from tidegate.learner.warmup_settings import WarmupSettings
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.runtime.stats_board import StatsBoard

CPU = torch.device("cpu")
# Of what is computed: some operations are made of others there. A wrong row or a missing part is far above it.
RTOL, ATOL = 1e-3, 1e-5


@dataclass(frozen=True)
class Case:
    """A trainer on a device, and its batches. ``module``: whose ``CPU`` is the device of what it makes, if any."""

    algorithm: AlgorithmName
    make: Callable[[torch.device, Path], SharedTrainer]
    batch: Callable[[int], Any]
    module: ModuleType | None = None


@contextmanager
def parameters_stay_the_same_objects() -> Generator[None]:
    """Moving a module to CUDA changes its parameters in place; to another device only when torch is told so."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def text_model(device: torch.device, folder: Path) -> LanguageModelTrainer:
    """With a critic, and a reference that is a second model."""
    del folder
    spec = CharLmSpec(d_model=8, num_heads=2, num_layers=1, context_length=16, value_head=True)
    model = CharLm(spec, generator=torch.Generator().manual_seed(3)).to(device)
    settings = GrpoSettings(minibatches=2, warmup_versions=0, objective="decoupled_ppo", kl_weight=0.1)
    return LanguageModelTrainer(model, settings, seed=3, device=device, pass_tokens=24)


def pretrained(lora_rank: int) -> Callable[[torch.device, Path], LanguageModelTrainer]:
    """Adapters, whose reference is the model without them; or all weights, rounded in each pass."""

    def make(device: torch.device, folder: Path) -> LanguageModelTrainer:
        model = open_model(make_folder(folder, tied=True), lora_rank=lora_rank, attention="eager")
        with parameters_stay_the_same_objects():
            model.to(device)
        settings = GrpoSettings(minibatches=1, warmup_versions=0, kl_weight=0.1)
        return LanguageModelTrainer(model, settings, seed=3, device=device)

    return make


def patched(make: Callable[[], SharedTrainer]) -> Callable[[torch.device, Path], SharedTrainer]:
    """Of a module's own function, whose device is the module's ``CPU``."""

    def made(device: torch.device, folder: Path) -> SharedTrainer:
        del device, folder
        return make()

    return made


def frames(number: int) -> list[Any]:
    """Segments with each frame once, beside an image-free observation."""
    policy = images.network(images.MIXED)
    params = policy.init_params(np.random.default_rng(3))
    played = images.play(policy, params, number, num_steps=4, num_envs=2)
    return images.batch(images.frames_once(played, images.CAMERA))


def segments(number: int) -> list[Any]:
    return shared.segments(number, num_segments=2)


def remembered(number: int) -> list[Any]:
    return shared.with_memory(segments(number))


def computed(number: int) -> list[Any]:
    return gradients.gradient_records(gradients.applied(), range(number, number + 2))


CASES = {
    "segments": Case("actor_critic", patched(lambda: shared.actor_critic(ALONE)), segments, shared),
    "memory": Case("actor_critic", patched(lambda: shared.recurrent(ALONE)), remembered, shared),
    "images": Case(
        "actor_critic", patched(lambda: images.trainer(images.network(images.MIXED))), frames, images
    ),
    "gradients": Case("applied_gradients", patched(lambda: gradients.applied()), computed, gradients),
    "transitions": Case(
        "q_learning", patched(lambda: q_learning.learner()), q_learning.transitions, q_learning
    ),
    "sequences": Case("r2d2", patched(lambda: r2d2.learner(normalise=True)), r2d2.sequences, r2d2),
    "continuous": Case(
        "sac", patched(lambda: shared.sac(ALONE)), lambda n: shared.transitions(n, num_units=6), shared
    ),
    "continuous images": Case(
        "sac",
        patched(lambda: shared.sac_on_images(ALONE)),
        lambda n: shared.image_transitions(n, num_units=6),
        shared,
    ),
    "text": Case("language_model", text_model, lambda n: shared.groups(n, num_groups=3)),
    "adapters": Case("language_model", pretrained(2), lambda n: shared.groups(n, num_groups=2)),
    "weights": Case("language_model", pretrained(0), lambda n: shared.groups(n, num_groups=2)),
}


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def make(
    case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[torch.device], SharedTrainer]:
    def on(device: torch.device) -> SharedTrainer:
        with monkeypatch.context() as patch:
            if case.module is not None:
                patch.setattr(case.module, "CPU", device)
            return case.make(device, tmp_path / "model")

    return on


def train(trainer: SharedTrainer, case: Case, *, updates: int = 2) -> list[dict[str, float]]:
    return [trainer.update(trainer.prepare(case.batch(n)), number=n) for n in range(1, updates + 1)]


def check_equal(one: SharedTrainer, other: SharedTrainer, *, rtol: float = 0.0, atol: float = 0.0) -> None:
    for mine, theirs in ((one.policy(), other.policy()), (one.state().tensors, other.state().tensors)):
        assert mine.keys() == theirs.keys()
        for name, array in mine.items():
            np.testing.assert_allclose(array, theirs[name], rtol=rtol, atol=atol, err_msg=name)


def test_every_trainer_has_a_case() -> None:
    assert {case.algorithm for case in CASES.values()} == TRAINERS.keys()


@pytest.fixture
def double_precision() -> Generator[None]:
    """Adam would make steps of the rounding of gradients that are nothing else, as of the biases of keys."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
def test_an_update_is_that_of_the_cpu(case: Case, make: Callable[[torch.device], SharedTrainer]) -> None:
    there, here = make(second_device()), make(CPU)
    assert any(isinstance(tensor, AccelTensor) for tensor in there.live().values())
    for measured, expected in zip(train(there, case), train(here, case), strict=True):
        assert measured == pytest.approx(expected, rel=RTOL, abs=ATOL)
    # Adam makes steps of the rounding of gradients that are nothing else, as of the biases of keys: the metrics decide.
    check_equal(there, here, rtol=RTOL, atol=10 * ATOL)


@pytest.mark.slow
def test_a_trainer_goes_on_from_the_state_that_another_device_left(
    case: Case, make: Callable[[torch.device], SharedTrainer]
) -> None:
    here, there = make(CPU), make(second_device())
    train(here, case)
    there.restore(here.policy(), here.state())
    check_equal(there, here)
    train(there, case)
    here.restore(there.policy(), there.state())
    check_equal(here, there)


class AgreeingRanks(Tape):
    """A group of which all members hold the same."""

    rank, count, timeout_s, waited_s = 0, 2, 60.0, 0.0

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        assert values.device.type == "cpu", "gloo's exchange of numbers that are compared at once"
        return values


def test_ranks_compare_the_whole_state(case: Case, make: Callable[[torch.device], SharedTrainer]) -> None:
    check_same_state(AgreeingRanks().as_group(), make(second_device()).live(), number=20)


@pytest.mark.slow
def test_ranks_share_a_state_and_a_batch(case: Case, make: Callable[[torch.device], SharedTrainer]) -> None:
    tape, leader, follower = AgreeingRanks(), make(second_device()), make(second_device())
    tape.device = second_device()
    train(leader, case)
    board = StatsBoard(service="learner", instance="learner", started_at_s=0.0)
    leading = LeadingTrainer(leader, tape.as_group(), stats=board)
    try:
        leading.share()
        leading.update(leader.prepare(case.batch(3)), number=3)
    finally:
        leading.stop()
    tape.recorded = True
    follow(follower, tape.as_group(), asked_to_stop=lambda: False)
    check_equal(follower, leader)


@pytest.mark.slow
@pytest.mark.usefixtures("double_precision")
def test_a_warm_up_is_that_of_the_cpu() -> None:
    settings = WarmupSettings(
        stop_at_solved=1.0, max_steps=4, batch_size=4, heldout_samples=2, evaluate_every_steps=2
    )
    models = make_model(), make_model().to(second_device())
    for model in models:
        with pytest.raises(WarmupError):
            supervised_warmup(model, EXAMPLES, HELDOUT, settings, generator=torch.Generator().manual_seed(0))
    here, there = (model.to_arrays() for model in models)
    for name, array in here.items():
        np.testing.assert_allclose(array, there[name], rtol=RTOL, atol=ATOL, err_msg=name)


@pytest.mark.slow
def test_a_warm_up_of_adapters_is_that_of_the_cpu(tmp_path: Path) -> None:
    settings = WarmupSettings(demonstrations="task", max_steps=2, batch_size=4, evaluate_every_steps=1)
    losses: list[list[float | None]] = []
    metrics: list[dict[str, float]] = []
    for device in (second_device(), CPU):
        trainer = pretrained(2)(device, tmp_path / "model")
        evaluations: list[WarmupProgress] = []
        fine_tune(
            trainer.model,
            trainer.warmup_optimizer(learning_rate=1e-3, weight_decay=0.01),
            fine_tuned.EXAMPLES,
            fine_tuned.HELDOUT,
            settings,
            pass_tokens=fine_tuned.PASS_TOKENS,
            generator=torch.Generator().manual_seed(0),
            report=evaluations.append,
        )
        # The next update compares with the reference that the warm-up made.
        trainer.begin_from(trainer.policy())
        losses.append([each.heldout_loss for each in evaluations])
        metrics.append(trainer.update(trainer.prepare(shared.groups(1, num_groups=2)), number=1))
    assert losses[0] == pytest.approx(losses[1], rel=RTOL)
    assert metrics[0] == pytest.approx(metrics[1], rel=RTOL, abs=ATOL)


def test_the_second_device_refuses_what_a_gpu_refuses() -> None:
    there, here = torch.ones(2, device=second_device()), torch.ones(2)
    for mixed in (
        lambda: there + here,
        lambda: torch.stack([there.sum(), here.sum()]),
        lambda: torch.cat([there, here]),
        lambda: here[there.long()],
        lambda: torch.multinomial(there, 1, generator=torch.Generator()),
    ):
        with pytest.raises(MixedDevicesError):
            mixed()
    with pytest.raises((TypeError, RuntimeError)):
        there.numpy()
    assert torch.equal((there * torch.tensor(2.0)).cpu(), 2.0 * here)
    assert torch.equal(there[torch.tensor([0])].cpu(), here[:1])
