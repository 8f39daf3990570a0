"""The section ``postgres`` of a run file."""

from typing import Annotated

import msgspec

URI_VARIABLE = "POSTGRES_URI"


class PostgresConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replicate the files of task queue and trajectory store to PostgreSQL; ``postgres: {}`` does with the defaults.

    ``uri_env``: the environment variable with the address, user and password (``postgresql://user:password@host/db``),
    which only these two services get. ``payloads``: whether the payloads of trajectories go there as well; without
    them, what waits for the learner is dropped when the store loses its volume.
    """

    uri_env: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = URI_VARIABLE
    payloads: bool = True
