from pathlib import Path

from tidegate.admission.samples import Sample, SampleFile, read_samples


def open_file(path: Path, *, bytes_max: int = 10_000, files_kept: int = 2) -> SampleFile:
    return SampleFile(path, bytes_max=bytes_max, files_kept=files_kept)


def sample(number: int) -> Sample:
    return Sample(at_s=float(number), values={"actor.steps_total": 2.0 * number}, bottleneck="balanced")


def test_samples_read_back_in_order_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "stats.jsonl"
    for life in range(3):
        file = open_file(path)
        for number in range(10 * life, 10 * life + 10):
            file.append(sample(number))
        file.close()
    assert list(read_samples(path)) == [sample(number) for number in range(30)]


def test_line_cut_off_by_a_kill_costs_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "stats.jsonl"
    file = open_file(path)
    file.append(sample(1))
    file.close()
    with path.open("ab") as torn:
        torn.write(b'{"at_s": 2.0, "val')
    again = open_file(path)
    again.append(sample(3))
    again.close()
    assert list(read_samples(path)) == [sample(1), sample(3)]


def test_file_is_rotated_and_the_oldest_samples_go_first(tmp_path: Path) -> None:
    path = tmp_path / "stats.jsonl"
    file = open_file(path, bytes_max=1_000)
    for number in range(200):
        file.append(sample(number))
    file.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "stats.jsonl",
        "stats.jsonl.1",
        "stats.jsonl.2",
    ]
    assert all(each.stat().st_size < 1_100 for each in tmp_path.iterdir())
    kept = [int(each.at_s) for each in read_samples(path)]
    assert kept == list(range(kept[0], 200))


def test_run_without_samples_reads_as_none(tmp_path: Path) -> None:
    assert list(read_samples(tmp_path / "stats.jsonl")) == []
