import msgspec
import pytest

from tidegate.core.errors import ConfigError
from tidegate.core.sizing.accelerators import ACCELERATORS, parse_bytes
from tidegate.core.sizing.learner import Training
from tidegate.core.sizing.learner_room import LearnerRoom, does_not_fit_room
from tidegate.core.sizing.shapes import SHAPES

H100 = ACCELERATORS["H100-80"]
SEVEN = Training(SHAPES["7b"], length=4096, lora_rank=16)
ROOM = LearnerRoom(ranks=8, pods=1, kind=H100, memory_bytes=160e9, disk_bytes=10e9)


def refused(training: Training, room: LearnerRoom) -> str:
    misfit = does_not_fit_room(training, room, keep_checkpoints=2)
    assert misfit is not None
    return f"{misfit.what} | {misfit.why} | {misfit.fix}"


def test_training_that_fits_is_not_refused() -> None:
    assert does_not_fit_room(SEVEN, ROOM, keep_checkpoints=2) is None
    unknown = LearnerRoom(ranks=8)
    assert does_not_fit_room(msgspec.structs.replace(SEVEN, lora_rank=0), unknown, keep_checkpoints=2) is None


def test_too_large_model_is_refused_with_adapters_and_the_gpu_that_would_do() -> None:
    told = refused(msgspec.structs.replace(SEVEN, lora_rank=0), ROOM)
    assert "each GPU (H100-80), which holds the whole model, has 85.5 GB" in told
    assert (
        "nearest that fits: Qwen2.5-7B, LoRA of rank 16, texts of 4,096 tokens; or the same on B200-180"
        in told
    )


def test_model_beyond_every_gpu_names_none() -> None:
    assert "or the same on" not in refused(Training(SHAPES["72b"], length=512, pass_tokens=1), ROOM)


def test_memory_of_a_pod_is_judged_by_all_of_its_ranks() -> None:
    one = msgspec.structs.replace(ROOM, ranks=1, memory_bytes=20e9)
    assert does_not_fit_room(SEVEN, one, keep_checkpoints=2) is None
    told = refused(SEVEN, msgspec.structs.replace(one, ranks=8))
    assert "in a pod of 8 ranks" in told
    assert "give the learner's pods" in told
    spread = msgspec.structs.replace(one, ranks=8, pods=8)
    assert does_not_fit_room(SEVEN, spread, keep_checkpoints=2) is None


def test_ranks_without_gpus_share_the_memory_of_their_pod() -> None:
    small = Training(SHAPES["0.5b"], length=256, width_bytes=4, pass_tokens=1)
    assert does_not_fit_room(small, LearnerRoom(memory_bytes=24e9), keep_checkpoints=2) is None
    told = refused(small, LearnerRoom(ranks=4, memory_bytes=24e9))
    assert "each of 4 ranks in a pod has 6.0 GB" in told


def test_disk_is_that_of_the_kept_checkpoints_and_the_next() -> None:
    told = refused(SEVEN, msgspec.structs.replace(ROOM, disk_bytes=1e9))
    assert "it keeps 2 and writes another" in told
    assert "lower learner.keep_checkpoints" in told


@pytest.mark.parametrize(
    ("text", "size"), [("16Gi", 16 << 30), ("1.5k", 1500), ("7", 7), ("104Gi", 104 << 30), ("2T", 2e12)]
)
def test_size_is_read_as_kubernetes_writes_it(text: str, size: float) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "16 gigabytes", "-1Gi", "1e9Gi", "Gi"])
def test_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no size"):
        parse_bytes(text)
