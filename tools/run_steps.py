"""Run make targets at the same time and print each one's output whole, with its seconds.

Usage: python tools/run_steps.py [--stream TARGET] TARGET... The output of the streamed target is printed as it comes,
that of each other one in a block when it ends. Every target runs to its end, or for ``LIMIT_S``; the exit code is 1 if
one of them failed, and the last line names those.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

INTERRUPTED = 130
TIMED_OUT = 124
# A test ends by its own timeout. This ends what no longer can: a worker's orphan that keeps its pipe open, as once.
LIMIT_S = 2400.0
GRACE_S = 20.0


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


async def run(target: str, *, streams: bool, limit_s: float = LIMIT_S) -> Finished:
    """Run one target to its end; one that is cancelled or takes longer than ``limit_s`` ends with its processes."""
    started_s = time.monotonic()
    pipe = None if streams else asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *("make", "--no-print-directory", target),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe,
        stderr=None if streams else asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await process.communicate()
    except TimeoutError:
        await _end(process)
        told = f"== {target}: ended with its processes after {limit_s:.0f} s, and what it printed is lost\n"
        return Finished(target, TIMED_OUT, time.monotonic() - started_s, told)
    except asyncio.CancelledError:
        await _end(process)
        raise
    text = (output or b"").decode(errors="replace")
    return Finished(target, process.returncode or 0, time.monotonic() - started_s, text)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Interrupt a target and its processes, so that tests stop what they started; kill what is left of its session."""
    with contextlib.suppress(ProcessLookupError, TimeoutError):
        os.killpg(process.pid, signal.SIGINT)
        async with asyncio.timeout(GRACE_S):
            await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def report(text: str) -> None:
    """Print at once, whole."""
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
