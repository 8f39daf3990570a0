"""What every bench is given."""

import sys
from pathlib import Path

import msgspec


class BenchSetting(msgspec.Struct, frozen=True):
    """``folder``: for everything that is written meanwhile; ``output``: the JSON that is kept.

    ``quick``: one short repetition, to see that it works.
    ``repetitions``: None takes each bench's own number; ``seeds``: of each setting where seeds differ.
    """

    run_file: Path
    folder: Path
    output: Path
    quick: bool
    repetitions: int | None
    seeds: int

    def repeat(self, usual: int) -> int:
        """How often to measure."""
        if self.repetitions is not None:
            return self.repetitions
        return 1 if self.quick else usual


def print_progress(text: str) -> None:
    """Print progress to standard error: a whole round of benches takes many minutes."""
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()
