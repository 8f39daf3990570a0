"""A user's engine: found by its name, loaded into the actor, held to its port."""

from pathlib import Path
from typing import Any

import pytest

from tidegate.actor.engines.own_engine_trial import EngineQuestion, tried
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.registry import (
    METHODS,
    EngineSetting,
    find_engine,
    is_own_engine,
    open_token_engine,
    own_engine_of,
)
from tidegate.core.errors import ConfigError
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import PolicyConfig, WorkloadConfig
from tidegate.runtime.own_code.references import OwnReference

TEXT = WorkloadConfig(kind="text", env="arithmetic", num_samples=2)
CHAR_LM = PolicyConfig(kind="char_lm")
ENGINE = """
class Engine:
    tokenizer = context_length = None

    def __init__(self, setting, control, clock):
        self.slots = setting.slots

    def check_policy(self, snapshot): pass
    def check_task(self, task): pass
    async def run(self): pass
    async def generate(self, request, written): pass
    async def close(self): pass
"""


def opened(folder: Path, code: str, *, slots: int = 3) -> Any:
    (folder / "mine.py").write_text(code)
    setting = EngineSetting(
        workload=TEXT, policy=CHAR_LM, seed=0, actor_index=0, slots=slots, files_dir=str(folder)
    )
    return open_token_engine("mine.py:Engine", setting, EngineControl(), SystemClock())


def test_engine_of_text_writes_tokens_and_is_opened_with_the_settings_of_its_actor(tmp_path: Path) -> None:
    assert find_engine("mine.py:Engine", workload=TEXT, policy=CHAR_LM).port == "tokens"
    engine = opened(tmp_path, ENGINE)
    assert engine.slots == 3


def test_engine_of_segments_plays_batches() -> None:
    workload = WorkloadConfig(kind="segments", env="CartPole-v1")
    entry = find_engine("mine.py:Engine", workload=workload, policy=PolicyConfig(kind="mlp"))
    assert entry.port == "batch"
    assert "complete" in METHODS[entry.port]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (ENGINE.replace("async def run(self): pass", ""), r"is no engine.*has no run"),
        (
            ENGINE.replace("self.slots = setting.slots", "raise OSError('no GPU')"),
            r"cannot be opened.*OSError at \S*mine\.py:6 in __init__: no GPU",
        ),
        ("import no_such_module\nEngine = 1\n", r"ModuleNotFoundError at \S*mine\.py:1"),
        ("def Other(): pass\n", "defines no 'Engine'"),
    ],
)
def test_what_is_no_engine_is_refused_with_its_place(tmp_path: Path, code: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        opened(tmp_path, code)


def test_names_of_this_package_are_not_ones_own_and_a_typo_is_named() -> None:
    assert not is_own_engine("auto")
    assert own_engine_of("torch", folder="") is None
    with pytest.raises(ConfigError, match=r"no 'torhc' among the engines.* name one of: torch"):
        own_engine_of("torhc", folder="")


def test_trial_before_a_run_refuses_what_cannot_be_called(tmp_path: Path) -> None:
    (tmp_path / "own_opener.py").write_text("def open_engine(setting): pass\n")
    path = str(tmp_path / "own_opener.py")
    reference = OwnReference("own_opener.py:open_engine", path, "open_engine", str(tmp_path))
    with pytest.raises(ConfigError, match=r"cannot be called as \(setting, control, clock\)"):
        tried(EngineQuestion(reference))
