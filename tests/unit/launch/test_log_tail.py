"""The message that a log ends with: the last error in any of the formats of a run's processes."""

from pathlib import Path

import pytest

from tidegate.launch.log_tail import MESSAGE_CHARACTERS_MAX, TAIL_BYTES, final_message, final_message_of

READY = "timestamp=2026-01-31T12:00:00Z level=info event=service_ready address=here"
STOPPED = "timestamp=2026-01-31T12:00:09Z level=info event=service_stopped failed=true"
FAILED = (
    "timestamp=2026-01-31T12:00:08Z level=error event=loop_failed loop=generate"
    ' error="Environment \\"x\\" failed in copy 3. ValueError. Correct it."'
)
CRASHED = (
    "timestamp=2026-01-31T12:00:08Z level=error event=loop_crashed loop=fetch"
    ' exception="Traceback (most recent call last):\\n  File \\"a.py\\", line 1\\nKeyError: \'b\'"'
)
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "/x/main.py", line 20, in <module>',
    "    main()",
    "ModuleNotFoundError: No module named 'my_module'",
]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([READY, FAILED, STOPPED], 'Environment "x" failed in copy 3. ValueError. Correct it.'),
        ([FAILED, READY, CRASHED, STOPPED, ""], "KeyError: 'b'"),
        ([READY, "timestamp=t level=error event=loop_ended loop=watch", STOPPED], "loop_ended"),
        ([READY, *TRACEBACK], "ModuleNotFoundError: No module named 'my_module'"),
        ([FAILED, STOPPED, "tidegate serve actor: run.json: unknown field"], "run.json: unknown field"),
        (["[7] 2026/01/31 12:00:00.1 [FTL] open store: disk full", "[7] [INF] bye"], "open store: disk full"),
        (
            [READY, "timestamp=t level=info event=retrying error=late", ""],
            "timestamp=t level=info event=retrying error=late",
        ),
        (
            [
                READY,
                "Timeout (0:00:40)!",
                "Thread 0x7f (most recent call first):",
                '  File "/x/sim.py", line 7 in step',
            ],
            'the interpreter was blocked, so the process was ended: File "/x/sim.py", line 7 in step',
        ),
        (["no such table"], "no such table"),
        (["", " "], ""),
        ([], ""),
    ],
)
def test_last_error_is_found_above_what_follows_it(lines: list[str], message: str) -> None:
    assert final_message_of(lines) == message


def test_indented_text_without_a_traceback_is_no_error() -> None:
    assert final_message_of([FAILED, "  note", "done"]).startswith("Environment")


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "actor-0.log"
    log.write_text(f"{FAILED}\n{READY * 10}\n" + f"{READY}\n" * (TAIL_BYTES // len(READY)), encoding="utf-8")
    assert final_message(log) == READY
    log.write_text(FAILED.replace("Correct it", "x" * 1_000), encoding="utf-8")
    assert len(final_message(log)) == MESSAGE_CHARACTERS_MAX


def test_log_that_does_not_exist_has_no_message(tmp_path: Path) -> None:
    assert final_message(tmp_path / "actor-0.log") == ""
