"""The page of a cluster is served by the light image, which has neither torch nor what draws a report."""

import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[4]
SERVE = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"the light image has no {name}")

sys.meta_path.insert(0, Missing())
import tidegate.cli.ui.cluster
import tidegate.cli.ui.server
"""


def packages_of(lock: str) -> set[str]:
    text = (ROOT / "locks" / lock).read_text(encoding="utf-8")
    return {match.lower() for match in re.findall(r"^([A-Za-z0-9_.-]+)==", text, re.MULTILINE)}


def test_the_server_needs_no_package_that_the_light_image_has_not() -> None:
    left_out = packages_of("runtime.txt") - packages_of("light.txt")
    assert {"torch", "matplotlib"} <= left_out
    names = {
        name
        for name, packages in packages_distributions().items()
        if all(package.lower().replace("_", "-") in left_out for package in packages)
    }
    assert {"torch", "matplotlib"} <= names
    command = [sys.executable, "-c", SERVE, ",".join(sorted(names))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120.0, check=False)
    assert done.returncode == 0, done.stderr
