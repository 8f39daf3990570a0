from typing import Any

import msgspec
import pytest

from tidegate.core.errors import ConfigError
from tidegate.core.sizing.accelerators import ACCELERATORS, parse_gpus, parse_tokens
from tidegate.core.sizing.fitting import Machine, does_not_fit, does_not_fit_device
from tidegate.core.sizing.learner import Training
from tidegate.core.sizing.plan import PlanRequest, gibibytes_up, plan
from tidegate.core.sizing.shapes import SHAPES, shape_by_name, shape_of_config

QWEN = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}


def request(model: str, gpus: str, **changes: Any) -> PlanRequest:
    training = msgspec.structs.replace(Training(SHAPES[model], length=4096), **changes)
    return PlanRequest(training, parse_gpus(gpus))


def test_folder_of_a_model_has_the_shape_of_its_name() -> None:
    found = shape_of_config(QWEN, name="Qwen2.5-7B")
    assert found == SHAPES["7b"]
    assert found.parameters == 7_615_616_512
    assert shape_by_name("Qwen2.5-7B-Instruct") == shape_by_name("7B") == found
    assert shape_by_name("8b") is None


def test_shape_inside_of_a_text_config_is_found() -> None:
    assert shape_of_config({"text_config": QWEN, "model_type": "qwen2"}, name="Qwen2.5-7B") == SHAPES["7b"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_experts": 128}, "mixture of experts"),
        ({"hidden_size": None}, "decoder-only"),
        ({"vocab_size": "?"}, "decoder-only"),
    ],
)
def test_model_that_the_formulas_do_not_describe_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        shape_of_config({**QWEN, **changes}, name="it")


@pytest.mark.parametrize(
    ("text", "count", "kind"),
    [("8xH100-80", 8, "H100-80"), ("h200-141", 1, "H200-141"), ("4 × L4-24", 4, "L4-24")],
)
def test_gpus_are_a_number_and_a_kind(text: str, count: int, kind: str) -> None:
    assert parse_gpus(text).count == count
    assert parse_gpus(text).kind == ACCELERATORS[kind]


@pytest.mark.parametrize("text", ["8xH100", "0xH100-80", "H100-80x8", ""])
def test_gpus_of_no_kind_are_refused_with_the_kinds(text: str) -> None:
    with pytest.raises(ConfigError, match="H100-80"):
        parse_gpus(text)


def test_tokens_may_be_given_in_thousands_of_1024() -> None:
    assert (parse_tokens("16k"), parse_tokens("4096")) == (16_384, 4_096)
    with pytest.raises(ConfigError):
        parse_tokens("16kb")


def test_all_weights_of_7b_fit_no_gpu_of_80_gb_and_the_nearest_plans_do() -> None:
    asked = request("7b", "8xH100-80", length=16_384)
    misfit = does_not_fit(plan(asked), Machine())
    assert misfit is not None
    assert "every rank holds the whole model" in misfit.why
    assert "LoRA of rank 16, texts of 6,144 tokens" in misfit.fix
    near = msgspec.structs.replace(asked.training, lora_rank=16, length=6_144)
    assert does_not_fit(plan(msgspec.structs.replace(asked, training=near)), Machine()) is None


def test_no_parallelism_makes_a_learner_fit_because_every_rank_holds_everything() -> None:
    sizes = [plan(request("7b", f"{count}xH100-80")).learner.training for count in (8, 64)]
    assert sizes[0] == sizes[1]


def test_smaller_passes_are_proposed_before_shorter_texts() -> None:
    misfit = does_not_fit(plan(request("32b", "64xH200-141", length=2_048, lora_rank=16)), Machine())
    assert misfit is not None
    assert "nearest that fits: Qwen2.5-32B, LoRA of rank 16, texts of 2,048 tokens;" in misfit.fix


@pytest.mark.parametrize(
    "asked",
    [
        request("7b", "8xH100-80", lora_rank=16),
        request("1.5b", "8xH100-80", length=8_192),
        request("32b", "64xH200-141", length=2_048, lora_rank=16, pass_tokens=2_048),
    ],
    ids=str,
)
def test_split_uses_every_gpu_and_neither_side_is_without(asked: PlanRequest) -> None:
    answer = plan(asked)
    assert does_not_fit(answer, Machine()) is None
    split = answer.split
    assert split.learner_gpus + split.num_actors * split.tensor_parallel + split.idle == asked.gpus.count
    assert split.learner_gpus >= 1
    assert split.num_actors >= 1
    assert split.learner_gpus <= 8 or split.learner_gpus % 8 == 0, "pods of a learner are alike"
    for other in range(1, asked.gpus.count):
        fixed = plan(msgspec.structs.replace(asked, learner_gpus=other)).split
        if other <= 8 or other % 8 == 0:
            assert fixed.tokens_per_s <= split.tokens_per_s


def test_one_gpu_has_no_room_for_both_and_the_plan_says_so() -> None:
    misfit = does_not_fit(plan(request("0.5b", "H100-80")), Machine())
    assert misfit is not None
    assert "1 of 1 GPUs train" in misfit.what


def test_host_and_disk_are_judged_where_they_are_known() -> None:
    answer = plan(request("7b", "8xH100-80", lora_rank=16))
    assert does_not_fit(answer, Machine(host_bytes=2e12, disk_bytes=1e12)) is None
    for machine, part in ((Machine(host_bytes=16e9), "host"), (Machine(disk_bytes=1e9), "disk")):
        misfit = does_not_fit(answer, machine)
        assert misfit is not None
        assert part in misfit.what


def test_texts_beyond_the_context_of_the_model_are_refused() -> None:
    with pytest.raises(ConfigError, match="longer than the context"):
        plan(request("7b", "8xH100-80", length=65_536))


@pytest.mark.parametrize("changes", [{"mfu": 0.0}, {"mfu": 1.5}, {"learner_gpus": 9}], ids=str)
def test_number_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        plan(msgspec.structs.replace(request("7b", "8xH100-80"), **changes))


def test_cost_is_that_of_all_gpus() -> None:
    answer = plan(msgspec.structs.replace(request("7b", "8xH100-80", lora_rank=16), usd_per_gpu_h=2.5))
    assert answer.usd_per_h == 20.0
    assert answer.usd_per_million_tokens == pytest.approx(20.0 / 3600 / answer.split.tokens_per_s * 1e6)


def test_device_that_no_plan_names_is_judged_by_its_memory() -> None:
    training = Training(SHAPES["1.5b"], length=2_048, width_bytes=4)
    assert does_not_fit_device(training, room=200e9, device="it", reserve_bytes=0.0) is None
    misfit = does_not_fit_device(training, room=24e9, device="this machine", reserve_bytes=0.0)
    assert misfit is not None
    assert misfit.why == "this machine has 24.0 GB"
    assert "LoRA of rank 16" in misfit.fix


def test_pods_ask_for_whole_gibibytes() -> None:
    assert gibibytes_up(1.0) == 1
    assert gibibytes_up((1 << 30) * 9, step=8) == 16
