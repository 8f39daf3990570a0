"""Names of service instances; imported by every command, so nothing heavy is imported here."""

# Services of which a run may have several instances; they are numbered, and so are their data folders.
REPLICATED = frozenset({"actor", "environment"})


def instance_name(service: str, index: int) -> str:
    """``actor-0`` for replicated services, the bare name for the others."""
    return f"{service}-{index}" if service in REPLICATED else service


def names_standbys(address: str) -> bool:
    """Whether an address names several instances of a service, of which one works and the others stand by.

    It is then a target of gRPC (``dns:///name:port``, ``ipv4:host:port,host:port``) instead of a plain ``host:port``.
    """
    return address.startswith(("dns:", "ipv4:", "ipv6:"))


def is_instance_of(service: str, instance: str) -> bool:
    """Whether an instance of a service may have this name: ``instance_name``, or in a cluster the name of its pod.

    The last service in a pod's name counts, because a release may be named after one: no pod's name ends in words.
    """
    if service not in REPLICATED:
        return instance == service
    own = _last_place(service, instance)
    return own >= 0 and all(_last_place(other, instance) <= own for other in REPLICATED)


def _last_place(service: str, instance: str) -> int:
    return f"-{instance}".rfind(f"-{service}-")
