"""``tidegate play``: returns, seeds, pictures of environments that draw and of those that only observe images."""

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import imageio_ffmpeg
import msgspec
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray
from PIL import Image

from tests.support.environments import CARTPOLE
from tests.unit.cli.policy.folders import write_policies
from tidegate.cli.app import run
from tidegate.cli.policy.greedy_play import picture_of, play
from tidegate.cli.policy.video import video_at
from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription
from tidegate.launch.run_file import read_run_file
from tidegate.launch.stored_policy import StoredPolicy, read_stored_policy
from tidegate.learner.environment_file import write_environment
from tidegate.models.policies import build_policy
from tidegate.runtime.config import PolicyConfig, WorkloadConfig

MODULE = "tests.unit.cli.policy.test_greedy_play"
IMAGES_ID, BLIND_ID = f"{MODULE}:PlayImages-v0", f"{MODULE}:PlayBlind-v0"
RUNS = Path(__file__).parents[4] / "runs"


class Images(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Four steps; observes (4, 40, 44) frames whose newest is as bright as the step, and cannot draw itself."""

    def __init__(self) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 255, (4, 40, 44), np.uint8)
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observe(), 1.0, self.steps == 4, False, {}

    def observe(self) -> NDArray[np.uint8]:
        return np.full((4, 40, 44), [[[0]], [[0]], [[0]], [[10 * self.steps]]], np.uint8)


class Blind(Images):
    """The same with numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def observe(self) -> Any:
        return np.zeros(2, np.float32)


_registry: Any = gymnasium
for name, entry_point in (("PlayImages-v0", Images), ("PlayBlind-v0", Blind)):
    if name not in _registry.registry:
        _registry.register(name, entry_point=entry_point)


class Shots:
    """A camera that keeps its pictures."""

    def __init__(self) -> None:
        self.pictures: list[NDArray[np.uint8]] = []
        self.fps = 0.0

    def open(self, fps: float) -> "Shots":
        self.fps = fps
        return self

    def add(self, picture: NDArray[np.uint8]) -> None:
        self.pictures.append(picture)


def stored_of(folder: Path, env_id: str, space: BoxSpace, policy: PolicyConfig) -> StoredPolicy:
    """A fresh policy of one of the environments above."""
    description = EnvironmentDescription(env_id, space, DiscreteSpace(2))
    stored = read_stored_policy(write_policies(folder), None)
    write_environment(folder / "learner", description)
    workload = WorkloadConfig(kind="segments", env=env_id)
    return StoredPolicy(
        folder=folder,
        run=stored.run,
        version=stored.version,
        tensors=build_policy(description, policy).init_params(np.random.default_rng(0)),
        file=msgspec.structs.replace(stored.file, workload=workload, policy=policy),
        base_digest="",
    )


def test_command_prints_each_episode_and_the_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_policies(tmp_path)
    assert run(["play", str(folder), "--episodes", "3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["version"] == "0-root@20"
    assert (answer["seed"], answer["video"], len(answer["episodes"])) == (1, None, 3)
    returns = [episode["episode_return"] for episode in answer["episodes"]]
    assert answer["mean_return"] == pytest.approx(sum(returns) / 3)
    assert run(["play", str(folder), "--episodes", "3"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("episode ") == 3
    assert f"{returns[0]:.0f}" in printed


def test_seed_decides_the_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_policies(tmp_path)
    answers: list[Any] = []
    for seed in ("5", "5", "6"):
        assert run(["play", str(folder), "--seed", seed, "--episodes", "6", "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out)["episodes"])
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_video_holds_a_picture_of_each_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    folder = write_policies(tmp_path / "run")
    path = tmp_path / f"out{suffix}"
    arguments = ["play", str(folder), "--episodes", "1", "--steps-max", "12", "--video", str(path), "--json"]
    assert run(arguments) == 0
    [episode] = json.loads(capsys.readouterr().out)["episodes"]
    size, num_pictures = read_video(path)
    assert size == (600, 400)
    assert num_pictures == episode["length"] > 4
    assert sorted(each.name for each in tmp_path.iterdir()) == [path.name, "run"], (
        "nothing unfinished is left"
    )


def read_video(path: Path) -> tuple[tuple[int, int], int]:
    """Width and height, and the number of pictures."""
    if path.suffix == ".gif":
        with Image.open(path) as image:
            # Equal neighbours are one picture that is shown longer; CartPole has 50 a second.
            shown_ms = 0
            for index in range(int(getattr(image, "n_frames", 1))):
                image.seek(index)
                shown_ms += int(image.info["duration"])
            return image.size, shown_ms // 20
    library: Any = imageio_ffmpeg
    frames = library.read_frames(str(path))
    size = next(frames)["size"]
    return size, sum(1 for _ in frames)


def test_environment_that_cannot_draw_shows_the_newest_frame_that_it_observes(tmp_path: Path) -> None:
    policy = PolicyConfig(kind="cnn", network="nature", features=8)
    stored = stored_of(tmp_path, IMAGES_ID, BoxSpace((4, 40, 44), "uint8", (0.0,), (255.0,)), policy)
    shots = Shots()
    [episode] = play(stored, num_episodes=1, seed=0, steps_max=10, open_camera=shots.open)
    assert (episode.episode_return, episode.length) == (4.0, 4)
    assert [int(picture[0, 0, 0]) for picture in shots.pictures] == [0, 10, 20, 30]
    assert {picture.shape for picture in shots.pictures} == {(320, 352, 3)}
    assert shots.fps == 30.0


def test_environment_that_shows_nothing_is_refused_with_a_video_and_played_without(tmp_path: Path) -> None:
    stored = stored_of(
        tmp_path, BLIND_ID, BoxSpace((2,), "float32", (-1.0,), (1.0,)), PolicyConfig(kind="mlp")
    )
    assert play(stored, num_episodes=1, seed=0, steps_max=10)[0].length == 4
    with pytest.raises(ConfigError, match="draws no pictures"):
        play(stored, num_episodes=1, seed=0, steps_max=10, open_camera=Shots().open)


def test_policy_of_another_environment_is_refused(tmp_path: Path) -> None:
    stored = read_stored_policy(write_policies(tmp_path), None)
    other = msgspec.structs.replace(CARTPOLE, observation_space=BoxSpace((4,), "float32", (-9.0,), (9.0,)))
    write_environment(tmp_path / "learner", other)
    with pytest.raises(ConfigError, match="CartPole-v1"):
        play(stored, num_episodes=1, seed=0, steps_max=10)


def test_text_is_not_played(tmp_path: Path) -> None:
    stored = read_stored_policy(write_policies(tmp_path), None)
    text = StoredPolicy(
        folder=tmp_path,
        run=stored.run,
        version=stored.version,
        tensors={},
        file=read_run_file(RUNS / "arithmetic.yaml", []).file,
        base_digest="",
    )
    with pytest.raises(ConfigError, match="Only policies of segments are played"):
        play(text, num_episodes=1, seed=0, steps_max=10)


@pytest.mark.parametrize("video", ["out.avi", "out", "missing/out.gif"])
def test_video_that_cannot_be_written_is_refused_before_anything_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, video: str
) -> None:
    folder = write_policies(tmp_path / "run")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert run(["play", str(folder), "--video", video]) == 2
    assert "--video" in capsys.readouterr().err
    assert list((tmp_path / "here").iterdir()) == []


def test_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(NotFoundError, match=r"tidegate\[video\]"), video_at(tmp_path / "out.mp4", fps=30.0):
        pass


def test_video_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    picture = np.zeros((8, 8, 3), np.uint8)

    def fail() -> None:
        with video_at(tmp_path / "out.gif", fps=30.0) as video:
            video.add(picture)
            raise ConfigError("the environment failed")

    with pytest.raises(ConfigError, match="the environment failed"):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shape", "newest"),
    [
        ((40, 44), ...),
        ((4, 40, 44), (3,)),
        ((3, 40, 44), "colours"),
        ((40, 44, 3), "as it is"),
        ((40, 44, 1), (..., 0)),
        ((40, 44, 4), (..., 3)),
        ((2, 40, 44, 3), (1,)),
    ],
    ids=str,
)
def test_picture_shows_the_newest_frame_of_any_layout(shape: tuple[int, ...], newest: Any) -> None:
    observation = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    picture = picture_of(observation)
    assert picture.shape == (320, 352, 3)
    small = picture[::8, ::8]
    if newest == "colours":
        expected = np.moveaxis(observation, 0, 2)
    elif newest == "as it is":
        expected = observation
    else:
        expected = observation[newest]
    np.testing.assert_array_equal(
        small, expected if expected.ndim == 3 else np.repeat(expected[..., None], 3, axis=2)
    )
