"""Completion by the shell: commands, and the options of a command that is loaded for it alone."""

import os
import subprocess
import sys

import pytest


def completions(line: str, *, shell: str = "bash") -> str:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_TYPER_COMPLETE_ARGS": line}
    done = subprocess.run(
        [sys.executable, "-m", "tidegate.cli.main"],
        env={**os.environ, **words, "_TIDEGATE_COMPLETE": f"complete_{shell}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("line", "expected"), [("tidegate pau", ["pause"]), ("tidegate runs --ol", ["--older-than"])]
)
def test_commands_and_their_options_are_completed(line: str, expected: list[str]) -> None:
    assert completions(line).split() == expected


def test_zsh_gets_the_help_beside_the_option() -> None:
    assert "keep the newest N" in completions("tidegate runs --ke", shell="zsh")
