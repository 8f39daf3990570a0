"""The formulas against values that were measured, or counted in the code: issue 18, findings on GPUs, 1.1 to 1.3."""

import pytest

from tidegate.core.sizing.accelerators import GB, GIB, parse_gpus
from tidegate.core.sizing.learner import (
    PROCESS_BYTES,
    Training,
    activation_bytes,
    learner_memory,
    learner_rate,
)
from tidegate.core.sizing.rollouts import actor_host_bytes, cache_bytes_of_token, rollout_rate
from tidegate.core.sizing.shapes import SHAPES, ModelShape
from tidegate.core.sizing.versions import (
    checkpoint_bytes,
    disk,
    hops,
    learner_host_bytes,
    version_bytes,
)

MB = 1e6


def training(name: str, *, lora: int = 0, length: int = 4096) -> Training:
    return Training(SHAPES[name], length=length, lora_rank=lora)


@pytest.mark.parametrize(
    ("name", "policy_gb", "copies_gb"),
    [
        ("0.5b", 2.0, 0.7),
        ("1.5b", 6.2, 2.6),
        ("3b", 12.3, 5.5),
        ("7b", 30.5, 13.1),
        ("14b", 59.0, 26.4),
        ("32b", 131.0, 62.4),
        ("72b", 291.0, 140.4),
    ],
)
def test_parameters_and_rounded_copies_are_those_of_the_folders(
    name: str, policy_gb: float, copies_gb: float
) -> None:
    memory = learner_memory(training(name))
    assert memory.parameters / GB == pytest.approx(policy_gb, rel=0.02)
    # Prompts and completions are read one after the other, and the graph of each holds its copies.
    assert memory.compute_copies / GB == pytest.approx(2 * copies_gb, rel=0.03)
    assert memory.parameters + memory.moments + memory.gradient == 16 * SHAPES[name].parameters


@pytest.mark.parametrize(
    ("name", "full_mb", "lora_mb"),
    [
        ("0.5b", 1.4, 2.0),
        ("1.5b", 2.9, 4.1),
        ("3b", 4.7, 6.7),
        ("7b", 6.33, 8.99),
        ("14b", 10.5, 15.7),
        ("32b", 21.0, 29.8),
        ("72b", 32.4, 47.6),
    ],
)
def test_activations_of_a_token_are_those_that_the_library_keeps(
    name: str, full_mb: float, lora_mb: float
) -> None:
    assert activation_bytes(training(name)) / MB == pytest.approx(full_mb, rel=0.03)
    assert activation_bytes(training(name, lora=16)) / MB == pytest.approx(lora_mb, rel=0.03)


def test_head_alone_costs_17_ms_for_110_tokens_of_a_vocabulary_of_152_thousand() -> None:
    rate = learner_rate(training("7b"), parse_gpus("H100-80").kind, mfu=0.4)
    assert 110 * rate.head_s == pytest.approx(0.017, rel=0.1)


def test_a_gpu_of_7b_generates_about_three_thousand_tokens_a_second() -> None:
    assert cache_bytes_of_token(training("7b")) == 57_344
    rate = rollout_rate(training("7b", length=16_384), parse_gpus("H100-80").kind)
    assert 2_000 < rate < 5_000


def test_version_takes_the_measured_seconds_at_each_hop() -> None:
    way = {hop.name: hop for hop in hops(training("7b"), num_actors=4)}
    assert version_bytes(training("7b")) / GB == pytest.approx(30.5, rel=0.01)
    assert version_bytes(training("7b", lora=16)) / MB == pytest.approx(162, rel=0.01)
    assert version_bytes(training("32b", lora=16)) / MB == pytest.approx(537, rel=0.01)
    measured = {
        "learner: copy, the GPU waits": 82,
        "learner: encode and announce": 34,
        "root: write to its volume": 244,
        "root to 4 actors": 52,
        "actor: check the values": 9.2,
        "actor: cast and write the folder": 59,
    }
    for name, seconds in measured.items():
        assert way[name].seconds == pytest.approx(seconds, rel=0.02), name
    assert 5 <= way["server: load the folder, paused"].seconds <= 10


@pytest.mark.parametrize(("actors", "minutes"), [(48, 10), (192, 41)])
def test_one_root_needs_minutes_for_many_actors(actors: int, minutes: float) -> None:
    pulled = next(hop for hop in hops(training("7b"), num_actors=actors) if hop.name.startswith("root to"))
    assert pulled.seconds / 60 == pytest.approx(minutes, rel=0.05)


def test_disk_and_host_memory_are_those_of_the_code() -> None:
    full = training("7b")
    kept = disk(full, keep_versions=32, keep_checkpoints=2, actor_folders=0.0)
    assert kept.versions / GB == pytest.approx(975, rel=0.01)
    assert kept.checkpoints / GB == pytest.approx(275, rel=0.01)
    assert checkpoint_bytes(full) == 12 * SHAPES["7b"].parameters
    assert learner_host_bytes(full, ranks_in_pod=1) / GB == pytest.approx(183, rel=0.02)
    assert actor_host_bytes(full) / GB == pytest.approx(155, rel=0.03)


# PSS of a process that makes two updates of GRPO on a CPU, in MB (torch 2.13, one thread):
# tests/integration/learner/test_update_memory.py measures it again. 100 million parameters.
SMALL = ModelShape(
    name="small",
    width=768,
    num_layers=12,
    num_heads=12,
    num_kv_heads=4,
    head_dim=64,
    mlp_width=2_048,
    vocabulary_size=32_000,
    tied=True,
)


@pytest.mark.parametrize(
    ("width_bytes", "tokens_in_pass", "length", "peak_mb"),
    [(4, 96, 64, 2_596), (4, 1_088, 320, 3_420), (4, 2_112, 576, 4_513), (2, 1_088, 320, 3_550)],
)
def test_peak_of_an_update_is_within_a_tenth_of_what_was_measured(
    width_bytes: int, tokens_in_pass: int, length: int, peak_mb: float
) -> None:
    assert SMALL.parameters == 100_108_032
    asked = Training(SMALL, length=length, width_bytes=width_bytes, pass_tokens=tokens_in_pass)
    memory = learner_memory(asked, reserve_bytes=PROCESS_BYTES)
    assert memory.total / MB == pytest.approx(peak_mb, rel=0.1)


def test_memory_of_a_gpu_is_what_its_driver_reports() -> None:
    # nvidia-smi of an H100 of 80 GB: 81,559 MiB.
    assert parse_gpus("8xH100-80").kind.memory_bytes / GIB == pytest.approx(81_559 / 1024, rel=0.001)
