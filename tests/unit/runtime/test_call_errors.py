"""How failed calls are answered and logged."""

import string
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs

from tidegate.core.errors import RecordError, TidegateError, UnavailableError
from tidegate.runtime.call_errors import DETAILS_BYTES_MAX, answer_to, details_of
from tidegate.runtime.failure_log import LOG_PERIOD_S, FailureLog


def test_failures_of_one_method_are_one_line_a_period_that_counts_those_left_out() -> None:
    now_s = 100.0
    failures = FailureLog("rpc", event="call_failed", label="method", clock_s=lambda: now_s)
    with capture_logs() as lines:
        for _ in range(4):
            failures("Store/Append", ValueError("broken"))
        failures("Store/Lease", ValueError("broken"))
        now_s += LOG_PERIOD_S
        failures("Store/Append", ValueError("broken"))
    assert [(line["method"], line["left_out"]) for line in lines] == [
        ("Store/Append", 0),
        ("Store/Lease", 0),
        ("Store/Append", 3),
    ]


def test_refusal_is_answered_as_it_is_and_is_no_failure() -> None:
    failed: list[str] = []
    refusal = RecordError("The id is empty")
    answer = answer_to(refusal, "Store/Append", on_failure=lambda method, _error: failed.append(method))
    assert answer is refusal
    assert failed == []


def test_unexpected_exception_is_a_failure_whose_text_the_caller_does_not_read() -> None:
    failed: list[Exception] = []
    defect = KeyError("a prompt of the run")
    answer = answer_to(defect, "Store/Append", on_failure=lambda _method, error: failed.append(error))
    assert answer.status == TidegateError.status
    assert "prompt" not in str(answer)
    assert failed == [defect]


def test_error_without_a_status_of_its_own_is_a_failure() -> None:
    failed: list[Exception] = []
    error = TidegateError("The disk is gone")
    assert answer_to(error, "Store/Append", on_failure=lambda _method, each: failed.append(each)) is error
    assert failed == [error]


def test_call_that_finds_no_memory_is_a_failure_that_the_caller_repeats() -> None:
    failed: list[Exception] = []
    error = MemoryError()
    answer = answer_to(error, "Store/Append", on_failure=lambda _method, each: failed.append(each))
    assert answer.retryable
    assert answer.status == UnavailableError.status
    assert failed == [error]


@pytest.mark.parametrize("character", ["x", "%", "ж", "字", "\ud800"])
def test_long_error_is_cut_to_what_a_client_takes_and_keeps_its_begin_and_its_end(character: str) -> None:
    sent = details_of(RecordError("It failed", why=20_000 * character, fix="correct the environment"))
    assert sent.startswith("It failed. ")
    assert sent.endswith(" correct the environment.")
    # As gRPC writes it: all but printable ASCII in percent-encoding.
    num_bytes = len(quote(sent, safe=string.punctuation.replace("%", "") + " "))
    assert 0.9 * DETAILS_BYTES_MAX < num_bytes <= DETAILS_BYTES_MAX


def test_short_error_arrives_whole() -> None:
    error = RecordError("Es schlägt fehl", why="%", fix=400 * "字")
    assert details_of(error) == str(error)
