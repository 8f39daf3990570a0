"""Which sandbox runs model-written code, in the run file."""

from typing import Annotated, TypeAlias

import msgspec

Name = Annotated[str, msgspec.Meta(pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
RuntimeClass = Annotated[str, msgspec.Meta(pattern="^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$", max_length=253)]


class LinuxIsolation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="linux", tag_field="kind"):
    """Namespaces and a filter of system calls, inside of the environment worker's own machine or pod."""


class PodsIsolation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="pods", tag_field="kind"):
    """A pod of its own for each program, on a cluster.

    ``namespace``: of these pods, and of nothing else; never the release's own. ``runtime_class``: the RuntimeClass that
    isolates them, such as ``gvisor`` or ``kata``; there is no default, and "" is the nodes' own runtime, where the
    kernel is shared with the node. ``image``: with Python 3.11 or later as ``python3``; "" is the environment's own,
    which the chart names. ``warm``: pods that each environment worker keeps ready; a run takes one, and another one is
    started in its place. ``start_deadline_s``: seconds until a run without a ready pod fails. ``lifetime_s``: seconds
    after which an unused pod is replaced; pods that a killed worker left behind end by then. ``cpus``: the CPU limit
    of a pod.
    """

    namespace: Name
    runtime_class: RuntimeClass
    image: Annotated[str, msgspec.Meta(max_length=512)] = ""
    warm: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    start_deadline_s: Annotated[float, msgspec.Meta(ge=1.0, le=3600.0)] = 60.0
    lifetime_s: Annotated[float, msgspec.Meta(ge=60.0, le=86400.0)] = 900.0
    cpus: Annotated[float, msgspec.Meta(ge=0.1, le=64.0)] = 1.0


Isolation: TypeAlias = LinuxIsolation | PodsIsolation
