"""Files of a policy that go to object storage are those that a folder would have got."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import safetensors.numpy

from tests.unit.cli.policy.folders import write_policies
from tidegate.cli.app import run
from tidegate.cli.policy.sending import write_folder_to
from tidegate.core.errors import ConfigError
from tidegate.runtime.object_storage.place import ObjectPlace


def test_policy_at_an_address_is_the_file_that_a_folder_gets(tmp_path: Path) -> None:
    folder = write_policies(tmp_path / "run")
    local, sent = tmp_path / "policy.safetensors", tmp_path / "bucket" / "prefix" / "policy.safetensors"
    assert run(["policy", str(folder), "-o", str(local)]) == 0
    assert run(["policy", str(folder), "-o", sent.as_uri()]) == 0
    found, expected = (cast("Any", safetensors.numpy).load_file(path) for path in (sent, local))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor)


@pytest.mark.parametrize("target", ["ftp://host/policy.onnx", "s3://key:word@bucket/policy.onnx"])
def test_address_that_cannot_be_one_is_refused_before_the_policy_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    assert run(["policy", str(tmp_path / "no-run"), "-o", target]) == 2
    assert "--output" in capsys.readouterr().err


def test_model_card_is_sent_last_and_nothing_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(folder: Path) -> None:
        (folder / "original").mkdir(parents=True)
        for name in ("README.md", "config.json", "model.safetensors", "original/tokenizer.json"):
            (folder / name).write_text(name)

    sent: list[str] = []
    put_file = ObjectPlace.put_file

    async def noted(place: ObjectPlace, name: str, path: Path) -> None:
        sent.append(name)
        await put_file(place, name, path)

    monkeypatch.setattr(ObjectPlace, "put_file", noted)
    bucket = tmp_path / "bucket"
    write_folder_to(bucket.as_uri(), write)
    assert sent == ["config.json", "model.safetensors", "original/tokenizer.json", "README.md"]
    assert (bucket / "original" / "tokenizer.json").read_text() == "original/tokenizer.json"
    with pytest.raises(ConfigError, match="holds something"):
        write_folder_to(bucket.as_uri(), write)
