from pathlib import Path

import numpy as np

from tidegate.cli.token_gaps import FILE, FoundGaps, gaps_of, largest_gaps
from tidegate.core.ids import LineageName, PolicyVersion, TrajectoryId
from tidegate.learner.token_gaps_log import BYTES_MAX, TokenGapsLog

MAIN = LineageName("0-aaaa")
GAPS = np.array([0.5, np.nan, -0.25], np.float16)


def opened(folder: Path) -> TokenGapsLog:
    (folder / FILE).parent.mkdir()
    return TokenGapsLog(folder / FILE)


def test_gaps_are_found_by_their_trajectory(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(PolicyVersion(MAIN, 3), [(TrajectoryId("t1.0"), GAPS), (TrajectoryId("t1"), GAPS / 2)])
    log.append(PolicyVersion(MAIN, 4), [])
    log.append(PolicyVersion(MAIN, 5), [(TrajectoryId("t2.0"), 2 * GAPS)])
    log.close()
    assert gaps_of(tmp_path, "t1.0") == FoundGaps("0-aaaa@3", 0.5, [0.5, None, -0.25])
    assert gaps_of(tmp_path, "t1") == FoundGaps("0-aaaa@3", 0.25, [0.25, None, -0.125])
    assert gaps_of(tmp_path, "t2") is None
    assert [(each["trajectory_id"], each["largest"]) for each in largest_gaps(tmp_path, most=2)] == [
        ("t2.0", 1.0),
        ("t1.0", 0.5),
    ]
    assert len((tmp_path / FILE).read_bytes().splitlines()) == 2, "an update without gaps has no line"


def test_lines_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(PolicyVersion(MAIN, 3), [(TrajectoryId("t1.0"), GAPS)])
    log.close()
    whole = (tmp_path / FILE).read_bytes()
    damaged = whole.replace(b'"gaps":"', b'"gaps":"!').replace(b"t1.0", b"t2.0")
    (tmp_path / FILE).write_bytes(whole + damaged + b"\xff\xfe\n" + whole[:20])
    assert gaps_of(tmp_path, "t1.0") is not None
    assert gaps_of(tmp_path, "t2.0") == FoundGaps("0-aaaa@3", 0.5, [])
    assert len(largest_gaps(tmp_path)) == 2


def test_run_without_the_file_has_no_gaps(tmp_path: Path) -> None:
    assert gaps_of(tmp_path, "t1.0") is None
    assert largest_gaps(tmp_path) == []


def test_two_files_bound_what_is_kept(tmp_path: Path) -> None:
    log = opened(tmp_path)
    long = np.zeros(100_000, np.float16)
    for step in range(40):
        log.append(PolicyVersion(MAIN, step), [(TrajectoryId(f"t{step}.0"), long)])
    log.close()
    files = sorted((tmp_path / FILE).parent.iterdir())
    assert [path.name for path in files] == ["token_gaps.jsonl", "token_gaps.jsonl.1"]
    assert all(path.stat().st_size <= BYTES_MAX for path in files)
    assert gaps_of(tmp_path, "t39.0") is not None
    assert gaps_of(tmp_path, "t0.0") is None
