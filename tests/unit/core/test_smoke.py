"""Each check of the smoke run by an injected fault: what is named, and that nothing but it fails."""

import math
import re
from typing import Any

import msgspec
import pytest

from tidegate.core.doctor import MachineFinding
from tidegate.core.sizing.accelerators import ACCELERATORS
from tidegate.core.sizing.learner import Training, layer_flops
from tidegate.core.sizing.shapes import SHAPES
from tidegate.core.smoke import NumberFacts, RanksFacts, SmokeFacts, check_utilisation, smoke_findings

H100 = ACCELERATORS["H100-80"]
TRAINING = Training(SHAPES["0.5b"], length=512)
NUMBERS = NumberFacts(device="cuda", float32_error=2e-5, bfloat16_error=0.02)
RUN = SmokeFacts(
    engine="vllm",
    ranks=2,
    wanted=20,
    versions=20,
    run_s=90.0,
    first_update_s=30.0,
    recovered_s={"actor-0": 8.0, "learner": 12.0},
    drained_s=2.0,
    resumed_s=1.0,
    balanced=True,
    audit="balanced: 1,472 admitted",
    mismatch_kl=1e-3,
    one_rank=RanksFacts("0-a@16", loss=0.012, loss_alone=0.0121, grad_norm=1.5, grad_norm_alone=1.503),
    update_tokens=16_384.0,
    update_s=0.5,
)


def found(numbers: NumberFacts = NUMBERS, **changes: Any) -> list[MachineFinding]:
    return smoke_findings(numbers, msgspec.structs.replace(RUN, **changes), TRAINING, H100)


def test_healthy_run_passes_every_check() -> None:
    assert {finding.outcome for finding in found()} == {"pass"}


@pytest.mark.parametrize(
    ("changes", "check", "named"),
    [
        ({"versions": 7, "problem": "no space left"}, "smoke run", "7 of 20 versions.*no space left"),
        ({"first_update_s": None, "versions": 0}, "smoke run", "0 of 20 versions"),
        ({"mismatch_kl": 1.3}, "smoke engine", "1.3e.00 nats"),
        ({"mismatch_kl": math.nan}, "smoke engine", "nan nats"),
        # The gradient of one of two ranks' shares, and a loss of other rows.
        (
            {"one_rank": RanksFacts("0-a@16", grad_norm=0.75, grad_norm_alone=1.5)},
            "smoke ranks",
            "by 2 ranks and by one.*0.75000 and 1.50000",
        ),
        (
            {"one_rank": RanksFacts("0-a@16", loss=0.3, loss_alone=0.2, grad_norm=1.5, grad_norm_alone=1.5)},
            "smoke ranks",
            "loss 0.30000 and 0.20000",
        ),
        (
            {"one_rank": RanksFacts("0-a@16", grad_norm=math.nan, grad_norm_alone=1.5)},
            "smoke ranks",
            "nan",
        ),
        ({"one_rank": RanksFacts(problem="OutOfMemoryError")}, "smoke ranks", "OutOfMemoryError"),
        ({"recovered_s": {"actor-0": None}}, "smoke kill actor-0", "no update after kill -9"),
        ({"recovered_s": {"learner": 95.0}}, "smoke kill learner", "95.0 s after kill -9; 60 s are expected"),
        ({"drained_s": None}, "smoke pause", "still in flight"),
        ({"resumed_s": None}, "smoke pause", "no update came after its end"),
        ({"balanced": False, "audit": "NOT balanced: 1 lost"}, "smoke audit", "1 lost"),
        ({"balanced": None, "audit": ""}, "smoke audit", "no summary"),
    ],
)
def test_fault_of_the_run_is_named_alone(changes: dict[str, Any], check: str, named: str) -> None:
    failed = [finding for finding in found(**changes) if finding.outcome == "fail"]
    assert [finding.check for finding in failed] == [check]
    assert re.search(named, failed[0].found)
    assert failed[0].fix


def test_run_without_an_update_is_told_alone_and_nothing_of_a_pause_or_an_audit() -> None:
    findings = found(
        first_update_s=None,
        versions=0,
        recovered_s={},
        drained_s=None,
        resumed_s=None,
        balanced=None,
        audit="",
        mismatch_kl=None,
        update_s=0.0,
        problem="the port is taken",
    )
    assert [each.check for each in findings if each.outcome == "fail"] == ["smoke run"]
    assert {each.check for each in findings if each.outcome == "skip"} == {
        "smoke engine",
        "smoke pause",
        "smoke audit",
        "smoke utilisation",
    }


@pytest.mark.parametrize(
    "numbers",
    [
        NumberFacts(device="cuda", float32_error=0.01, bfloat16_error=0.02),
        NumberFacts(device="cuda", float32_error=1e-5, bfloat16_error=0.6),
        NumberFacts(device="cuda", float32_error=math.nan, bfloat16_error=math.nan),
        NumberFacts(device="cuda", problem="RuntimeError: CUDA error: an illegal memory access"),
    ],
)
def test_device_that_computes_something_else_is_named_alone(numbers: NumberFacts) -> None:
    failed = [finding for finding in found(numbers) if finding.outcome == "fail"]
    assert [finding.check for finding in failed] == ["smoke numbers"]


def test_machine_without_a_gpu_skips_what_compares_with_one() -> None:
    findings = smoke_findings(NumberFacts(), RUN, TRAINING, None)
    assert {finding.check for finding in findings if finding.outcome == "skip"} == {
        "smoke numbers",
        "smoke utilisation",
    }


def test_utilisation_is_operations_over_the_peak_of_the_ranks() -> None:
    # 16,384 tokens in half a second on two GPUs, in two passes of 4,096 tokens each.
    expected = 16_384 / 0.5 / 2 * layer_flops(TRAINING, passes=2) / H100.bfloat16_flops
    assert f"{expected:.1%} of the peak of H100-80" in check_utilisation(RUN, TRAINING, H100).found


def test_gpu_that_plans_do_not_know_has_no_peak() -> None:
    assert check_utilisation(RUN, TRAINING, None).outcome == "skip"
