"""``tidegate play``."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from tidegate.cli.console import open_console
from tidegate.cli.json_output import write_json
from tidegate.cli.policy.command import VersionOption
from tidegate.cli.policy.greedy_play import play as play_policy
from tidegate.cli.policy.video import check_video, video_at
from tidegate.cli.run_argument import RunArgument, RunOption, named_run
from tidegate.cli.up.view import number
from tidegate.launch.named_version import NEWEST
from tidegate.launch.stored_policy import StoredPolicy, stored_version
from tidegate.vector_envs.episodes import PlayedEpisode, summarise_returns


def play(
    run: RunArgument = None,
    folder: RunOption = None,
    version: VersionOption = NEWEST,
    episodes: Annotated[int, typer.Option(min=1, max=10_000, help="Whole episodes to play.")] = 5,
    video: Annotated[
        Path | None, typer.Option(help="Write a video of all steps: out.mp4 or out.gif (extra video).")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the environment's resets (default: the run's).")
    ] = None,
    steps_max: Annotated[int, typer.Option(min=1, help="Steps after which an episode is cut.")] = 30_000,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Play a version of a run's policy, greedily, and print the returns.

    The environment is opened here, in the folder where the run was started if it is one of your own; the run may have
    ended.
    """
    if video is not None:
        check_video(video)
    stored = stored_version(named_run(run, folder), version)
    chosen_seed = stored.file.seed if seed is None else seed
    with ExitStack() as stack:
        played = play_policy(
            stored,
            num_episodes=episodes,
            seed=chosen_seed,
            steps_max=steps_max,
            open_camera=None if video is None else lambda fps: stack.enter_context(video_at(video, fps=fps)),
        )
    if json:
        write_json(_as_json(stored, played, seed=chosen_seed, video=video))
    else:
        _print(stored, played, video=video)


def _as_json(
    stored: StoredPolicy, played: list[PlayedEpisode], *, seed: int, video: Path | None
) -> dict[str, Any]:
    returns = summarise_returns(played)
    return {
        "run": stored.run,
        "version": str(stored.version),
        "seed": seed,
        "episodes": played,
        "video": None if video is None else str(video),
        **({} if returns is None else msgspec.structs.asdict(returns)),
    }


def _print(stored: StoredPolicy, played: list[PlayedEpisode], *, video: Path | None) -> None:
    console = open_console()
    console.print(f"version {stored.version} of {stored.run}")
    for index, episode in enumerate(played, start=1):
        end = (
            "  cut" if episode.was_cut else "  the environment failed: not counted" if episode.failed else ""
        )
        console.print(
            f"  episode {index:<4} return {number(episode.episode_return):>7}   {episode.length:>6,} steps{end}",
        )
    returns = summarise_returns(played)
    if returns is not None:
        console.print(
            f"mean return {number(returns.mean_return)}, from {number(returns.min_return)}"
            f" to {number(returns.max_return)}",
        )
    if video is not None:
        console.print(f"video {video}, {video.stat().st_size:,} bytes", soft_wrap=True)
