"""Run make targets at the same time and print each one's output whole, with its seconds.

Usage: python tools/run_steps.py [--stream TARGET] TARGET... The output of the streamed target is printed as it comes,
that of each other one in a block when it ends. Every target runs to its end; the exit code is 1 if one of them failed,
and the last line names those.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

INTERRUPTED = 130


@dataclass(frozen=True)
class Finished:
    """A target that ended; ``output`` is empty where it was streamed."""

    target: str
    exit_code: int
    seconds: float
    output: str


def main(arguments: Sequence[str]) -> int:
    """Run the targets named on the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Run make targets at the same time.")
    parser.add_argument("--stream", default="", help="the target whose output is printed as it comes")
    parser.add_argument("targets", nargs="+")
    chosen = parser.parse_args(arguments)
    try:
        return asyncio.run(run_all(chosen.targets, stream=chosen.stream))
    except KeyboardInterrupt:
        return INTERRUPTED


async def run_all(targets: Sequence[str], *, stream: str) -> int:
    """Run all targets and report each when it ends; returns 1 if one failed."""
    started_s = time.monotonic()
    failed: list[str] = []
    for running in asyncio.as_completed([run(target, streams=target == stream) for target in targets]):
        finished = await running
        outcome = "passed" if finished.exit_code == 0 else "FAILED"
        report(f"{finished.output}== {finished.target}: {outcome} in {finished.seconds:.0f} s\n")
        if finished.exit_code != 0:
            failed.append(finished.target)
    verdict = f"FAILED: {', '.join(failed)}" if failed else f"all passed: {', '.join(targets)}"
    report(f"\n== {verdict} ({time.monotonic() - started_s:.0f} s)\n")
    return 1 if failed else 0


async def run(target: str, *, streams: bool) -> Finished:
    """Run one target to its end; a cancelled one is terminated."""
    started_s = time.monotonic()
    pipe = None if streams else asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *("make", "--no-print-directory", target),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe,
        stderr=None if streams else asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    text = (output or b"").decode(errors="replace")
    return Finished(target, process.returncode or 0, time.monotonic() - started_s, text)


def report(text: str) -> None:
    """Print at once, whole."""
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
