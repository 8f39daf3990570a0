import json
import shutil
from pathlib import Path

import pytest

from tests.unit.models.tiny_llama import make_folder
from tidegate.core.errors import ConfigError
from tidegate.models.model_folder import (
    CONFIG_FILE,
    INDEX_FILE,
    base_digest,
    check_files,
    folder_digest,
    shape_of_folder,
)


def test_digest_of_an_adapter_base_covers_weights_and_config(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "one", tied=True)
    same = base_digest("transformers", path=str(folder), lora_rank=2)
    assert same == folder_digest(folder)
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert base_digest("transformers", path=str(copy), lora_rank=4) == same
    other = make_folder(tmp_path / "other", tied=True, seed=1)
    assert base_digest("transformers", path=str(other), lora_rank=2) != same
    (copy / CONFIG_FILE).write_text((copy / CONFIG_FILE).read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert base_digest("transformers", path=str(copy), lora_rank=2) != same


def test_a_policy_that_is_all_weights_has_no_base(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, tied=True)
    assert base_digest("transformers", path=str(folder), lora_rank=0) == ""
    assert base_digest("char_lm", path="", lora_rank=2) == ""


def test_a_base_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere is no folder of a pretrained model"):
        base_digest("transformers", path=str(tmp_path / "nowhere"), lora_rank=2)


WEIGHTS = "model.safetensors"


def test_whole_model_is_as_large_as_its_files_of_weights(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, tied=True)
    assert check_files(folder) == (folder / WEIGHTS).stat().st_size


def test_file_of_weights_that_is_cut_short_or_a_pointer_is_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, tied=True)
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:-1])
    with pytest.raises(ConfigError, match="is cut short"):
        check_files(folder)
    for text in (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 269060552\n",
        b"",
        b"{}",
    ):
        (folder / WEIGHTS).write_bytes(text)
        with pytest.raises(ConfigError, match="is no file of safetensors"):
            check_files(folder)


def test_file_of_weights_that_only_the_index_names_is_missed(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, tied=True)
    index = {"weight_map": {"a": WEIGHTS, "b": "model-00002-of-00002.safetensors"}}
    (folder / INDEX_FILE).write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ConfigError, match="lacks 1 of its 2 files of weights"):
        check_files(folder)


@pytest.mark.parametrize("config", ["{", "[]", "{}"])
def test_config_that_names_no_model_is_refused(tmp_path: Path, config: str) -> None:
    folder = make_folder(tmp_path, tied=True)
    (folder / CONFIG_FILE).write_text(config, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config.json of policy.path cannot be read"):
        check_files(folder)


def test_folder_without_a_readable_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        shape_of_folder(tmp_path)
    (tmp_path / "config.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds no object"):
        shape_of_folder(tmp_path)
    (tmp_path / "config.json").write_bytes(b'{"hidden_size": "\xff"}')
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        shape_of_folder(tmp_path)
