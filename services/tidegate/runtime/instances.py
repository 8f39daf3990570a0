"""Names of service instances; imported by every command, so nothing heavy is imported here."""

# Services of which a run may have several instances; they are numbered, and so are their data folders.
REPLICATED = frozenset({"actor", "environment"})


def instance_name(service: str, index: int) -> str:
    """``actor-0`` for replicated services, the bare name for the others."""
    return f"{service}-{index}" if service in REPLICATED else service
