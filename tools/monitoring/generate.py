"""Write the rules, runbook pages and dashboards of the chart from the catalogues, or check them.

    python -m tools.monitoring.generate [--check]
    python -m tools.monitoring.generate --rules FOLDER --period 600 --window-min 10

The second form writes rules for another period into another folder, for runs shorter than a day and for tests.
"""

import argparse
import sys
from pathlib import Path

from tools.monitoring.dashboards import dashboard_files
from tools.monitoring.metric_pages import metric_pages
from tools.monitoring.rule_files import DEFAULT_PERIOD, rule_files, runbook_pages
from tools.monitoring.slo_rules import Period

ROOT = Path(__file__).resolve().parents[2]
RULES = Path("helm/tidegate/rules")
DASHBOARDS = Path("helm/tidegate/dashboards")
RUNBOOKS = Path("docs/runbooks")
METRICS = Path("docs/telemetry")


def generated() -> dict[Path, dict[str, str]]:
    """Every generated file by its folder; these folders contain nothing else."""
    return {
        RULES: rule_files(DEFAULT_PERIOD),
        DASHBOARDS: dashboard_files(),
        RUNBOOKS: runbook_pages(DEFAULT_PERIOD),
        METRICS: metric_pages(),
    }


def differences() -> list[str]:
    """Files that are missing, different or obsolete, as paths from the root."""
    found: list[str] = []
    for folder, files in generated().items():
        present = {path.name for path in (ROOT / folder).glob("*") if path.is_file()}
        found += [str(folder / name) for name in sorted(present ^ set(files))]
        found += [
            str(folder / name)
            for name in sorted(present & set(files))
            if (ROOT / folder / name).read_text(encoding="utf-8") != files[name]
        ]
    return found


def write(folder: Path, files: dict[str, str]) -> None:
    """Write the files of a folder, and delete all others in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*"):
        if path.is_file() and path.name not in files:
            path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Write, or check; returns the exit code."""
    parser = argparse.ArgumentParser(description="rules, runbook pages and dashboards from the catalogues")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file differs")
    parser.add_argument("--rules", type=Path, help="write rules for another period into this folder")
    parser.add_argument("--period", type=float, default=DEFAULT_PERIOD.period_s, help="seconds")
    parser.add_argument("--window-min", type=float, default=DEFAULT_PERIOD.window_min_s, help="seconds")
    asked = parser.parse_args(arguments)
    if asked.check:
        for path in (stale := differences()):
            sys.stderr.write(f"{path} differs from the catalogues: run make chart\n")
        return 1 if stale else 0
    if asked.rules is not None:
        write(asked.rules, rule_files(Period(asked.period, asked.window_min)))
        return 0
    for folder, files in generated().items():
        write(ROOT / folder, files)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
