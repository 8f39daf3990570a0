"""The runner as a command: its modules travel in the pod's own description, so that any image with Python will do."""

import base64
import functools
import json
import zlib
from pathlib import Path

from tidegate.environment.sandbox import zygote
from tidegate.environment.sandbox.linux import FLAGS
from tidegate.environment.sandbox.port import CODE_BYTES_MAX, STDIN_BYTES_MAX

PYTHON = "python3"
_MODULES = (
    "child", "frames", "in_pod", "kernel", "landlock", "program", "supervision", "syscall_filter", "syscalls", "tree",
    "usage",
)  # fmt: skip
_LOADER = """
import base64, importlib.abc, importlib.util, json, sys, zlib
sources = json.loads(zlib.decompress(base64.b64decode(sys.argv[1])))
class Sources(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name in sources:
            return importlib.util.spec_from_loader(name, self, is_package=not sources[name])
    def exec_module(self, module):
        exec(compile(sources[module.__name__], module.__name__, "exec"), module.__dict__)
sys.meta_path.insert(0, Sources())
from tidegate.environment.sandbox.zygote import in_pod, program
program.run(in_pod.main(int(sys.argv[2])))
"""


@functools.cache
def command() -> tuple[str, ...]:
    """The command of the pod's container: an interpreter, a loader, and the runner's modules (about 20 KB)."""
    folder = Path(zygote.__file__).parent
    sources = {f"{zygote.__name__}.{name}": (folder / f"{name}.py").read_text("utf-8") for name in _MODULES}
    packages = zygote.__name__.split(".")
    sources |= {".".join(packages[:depth]): "" for depth in range(1, len(packages) + 1)}
    packed = base64.b64encode(zlib.compress(json.dumps(sources).encode(), 9)).decode()
    part_bytes_max = max(CODE_BYTES_MAX, STDIN_BYTES_MAX)
    return (PYTHON, *FLAGS, "-c", _LOADER, packed, str(part_bytes_max))
