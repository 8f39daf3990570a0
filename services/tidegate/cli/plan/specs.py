"""What is typed on the command line for durations and speedups, as values."""

from pathlib import Path

from tidegate.core.errors import ConfigError
from tidegate.core.planner.scaling import ScalingCurve, check_curve
from tidegate.core.planner.tails import Durations, constant, exponential, lognormal, measured

DURATIONS_HELP = (
    "exp:MEAN_S, lognormal:MEAN_S:C (C = σ/μ), const:S, or a file with one number of seconds a line"
)
# A megabyte of numbers says no more about a tail than this; a file of anything else is not read to its end.
SAMPLES_MAX = 100_000


def parse_durations(text: str, *, flag: str) -> Durations:
    """``exp:0.040``, ``lognormal:2.0:1.0``, ``const:0.5``, plain seconds, or a file of measured seconds.

    Raises:
        ConfigError: it is none of these, or its numbers are no durations.
    """
    kind, _, rest = text.partition(":")
    if not rest and _is_number(text):
        return constant(float(text))
    if rest and kind in ("exp", "lognormal", "const"):
        numbers = _numbers(rest, text, flag=flag, count=2 if kind == "lognormal" else 1)
        if kind == "exp":
            return exponential(numbers[0])
        return constant(numbers[0]) if kind == "const" else lognormal(numbers[0], cv=numbers[1])
    return measured(_read_samples(Path(text), flag=flag))


def parse_speedup(text: str) -> ScalingCurve:
    """``1:1,2:1.9,4:3.5``: how many times as fast as one replica so many are.

    Raises:
        ConfigError: it is no such list, or no curve that can be measured.
    """
    points: list[tuple[int, float]] = []
    for pair in text.split(","):
        replicas, _, factor = pair.strip().partition(":")
        if not (replicas.isdecimal() and _is_number(factor)):
            raise ConfigError(
                f"--speedup {text}: {pair!r} is no REPLICAS:SPEEDUP", fix="write it as 1:1,2:1.9,4:3.5"
            )
        points.append((int(replicas), float(factor)))
    return check_curve(tuple(points))


def _numbers(rest: str, text: str, *, flag: str, count: int) -> list[float]:
    parts = rest.split(":")
    if len(parts) != count or not all(_is_number(part) for part in parts):
        raise ConfigError(f"{flag} {text} is no duration", fix=f"write {DURATIONS_HELP}")
    return [float(part) for part in parts]


def _read_samples(path: Path, *, flag: str) -> list[float]:
    try:
        with path.open(encoding="utf-8") as file:
            lines = [line.strip() for _, line in zip(range(SAMPLES_MAX), file, strict=False)]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{flag} {path} cannot be read",
            why=getattr(error, "strerror", None) or str(error),
            fix=f"write {DURATIONS_HELP}",
        ) from error
    filled = [line for line in lines if line]
    wrong = next((line for line in filled if not _is_number(line)), None)
    if wrong is not None:
        raise ConfigError(
            f"{path} holds {wrong[:40]!r}, which is no number", fix="give one number of seconds a line"
        )
    return [float(line) for line in filled]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
