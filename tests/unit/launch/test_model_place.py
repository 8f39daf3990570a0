from pathlib import Path

import pytest

from tidegate.launch.run_file import read_run_file


def test_model_beside_the_run_file_is_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / "models" / "base").mkdir(parents=True)
    arithmetic = Path("runs/arithmetic.yaml").read_text()
    (project / "run.yaml").write_text(arithmetic)
    own = ["policy={kind: transformers, path: models/base}"]

    def path_from(folder: Path, *overrides: str) -> str:
        monkeypatch.chdir(folder)
        return read_run_file(project / "run.yaml", [*own, *overrides]).file.policy.path

    assert path_from(tmp_path) == str(project / "models" / "base")
    assert path_from(project) == "models/base", "as it is written where that leads to it"
    assert path_from(tmp_path, "policy.path=smollm2") == "smollm2"
    assert path_from(tmp_path, "policy.path=models/other") == "models/other", "its check says what is missing"
