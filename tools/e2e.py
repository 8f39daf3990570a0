"""Run the tests that need a cluster, or print in one line what is missing. Usage: e2e.py TAG [arguments of pytest].

TAG is that of the images in the cluster (TIDEGATE_E2E_NEXT_TAG: of those to upgrade to, else the same). Exits as pytest
does, and 0 when there is no cluster: `.ci/run` on a machine without one passes, and prints that it skipped them.
"""

import os
import shutil
import subprocess
import sys


def main(arguments: list[str]) -> int:
    """Check the requirements, then run pytest; returns the exit code."""
    if not arguments:
        sys.stderr.write("Usage: e2e.py TAG [arguments of pytest]\n")
        return 2
    tag, *rest = arguments
    missing = [name for name in ("kubectl", "helm") if shutil.which(name) is None]
    if not os.environ.get("KUBECONFIG"):
        missing.insert(0, "KUBECONFIG")
    if missing:
        sys.stdout.write(
            f"tidegate: SKIPPED the tests on a cluster: there is no {', no '.join(missing)} here.\n"
        )
        return 0
    environment = {**os.environ, "TIDEGATE_CLUSTER_TESTS": "1"}
    environment.setdefault("TIDEGATE_E2E_TAG", tag)
    command = [sys.executable, "-m", "pytest", "-m", "cluster or chart", "-v", *rest]
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
