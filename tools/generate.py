"""Generate services/tidegate/v1 from protos/, or check that it is what protos/ generates.

Usage: .venv/bin/python tools/generate.py [--check]. The pinned grpcio-tools and mypy-protobuf of locks/dev.txt
write messages, gRPC stubs and their types; a file in v1 that no proto generates is removed. Third-party
interfaces keep their own package on the wire (protos/<package>/); their code is generated beside ours. With --check
nothing is written and the exit code is 1 when a file is missing, differs or is left over.
"""

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
TARGET = ROOT / "services" / "tidegate" / "v1"
OURS = PROTOS / "tidegate" / "v1"
INIT = '"""Code generated from protos/tidegate/v1 by `make generate`; never edited by hand."""\n'


def main() -> int:
    """Generate or check; returns the exit code."""
    parser = argparse.ArgumentParser(description="Generate services/tidegate/v1 from protos/.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail when v1 is not what protos/ generates"
    )
    check: bool = parser.parse_args().check
    wanted = generate()
    present = {path.name: path.read_bytes() for path in TARGET.glob("*.py*") if path.is_file()}
    changed = sorted(name for name, content in wanted.items() if present.get(name) != content)
    left_over = sorted(present.keys() - wanted.keys())
    if check:
        for name in (*changed, *left_over):
            report(
                f"services/tidegate/v1/{name} is not what protos/ generates: run `make generate` and commit it."
            )
        if not changed and not left_over:
            report(f"{len(wanted)} generated files match protos/.")
        return 1 if changed or left_over else 0
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in changed:
        (TARGET / name).write_bytes(wanted[name])
    for name in left_over:
        (TARGET / name).unlink()
    report(f"{len(changed)} files written, {len(left_over)} removed, {len(wanted) - len(changed)} unchanged.")
    return 0


def generate() -> dict[str, bytes]:
    """Generate into a temporary folder; returns the content of each file by its name.

    Raises:
        SystemExit: protoc refused a proto and printed the reason.
    """
    paths = sorted(PROTOS.rglob("*.proto"))
    # A proto's path decides its code's imports: third-party protos are given paths in tidegate/v1.
    protos = [f"tidegate/v1/{path.name}" for path in paths]
    theirs = sorted({path.parent for path in paths if path.parent != OURS})
    plugins = Path(sysconfig.get_path("scripts"))
    with tempfile.TemporaryDirectory() as out:
        messages = [f"--python_out={out}", f"--mypy_out=quiet:{out}"]
        # Every server and client here is grpc.aio, so the types need no synchronous twins.
        stubs = [f"--grpc_python_out={out}", f"--mypy_grpc_out=only_async,quiet:{out}"]
        protoc = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTOS}"]
        protoc += [f"--proto_path=tidegate/v1={folder}" for folder in theirs]
        for name in ("mypy", "mypy_grpc"):
            protoc.append(f"--plugin=protoc-gen-{name}={plugins / f'protoc-gen-{name}'}")
        services = [
            name
            for name, path in zip(protos, paths, strict=True)
            if name.endswith("_service.proto") or path.parent != OURS
        ]
        for command in ([*protoc, *messages, *protos], [*protoc, *stubs, *services]):
            if subprocess.run(command, check=False).returncode != 0:
                sys.exit(1)
        files = {path.name: path.read_bytes() for path in Path(out).rglob("*.py*")}
    return {"__init__.py": INIT.encode(), **files}


def report(line: str) -> None:
    """Print one line of progress."""
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
