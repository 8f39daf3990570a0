import shutil
from pathlib import Path

import pytest

from tests.unit.models.tiny_llama import make_folder
from tidegate.core.errors import ConfigError
from tidegate.models.model_folder import CONFIG_FILE, base_digest, folder_digest


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
