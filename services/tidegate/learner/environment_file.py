"""The description of the run's environment, beside the checkpoints: a policy is used where its environment is not."""

from pathlib import Path

import msgspec

from tidegate.core.errors import CorruptionError
from tidegate.core.spaces import EnvironmentDescription, description_from_json, description_to_json
from tidegate.runtime.files import replace_file

ENVIRONMENT_FILE = "environment.json"


def write_environment(folder: Path, description: EnvironmentDescription) -> None:
    """Write it into the learner's folder; a restart replaces it by the same."""
    text = msgspec.json.format(description_to_json(description), indent=2)
    replace_file(folder / ENVIRONMENT_FILE, text + b"\n")


def read_environment(folder: Path) -> EnvironmentDescription | None:
    """The description; None where no learner of segments wrote one.

    Raises:
        CorruptionError: the file holds something else.
    """
    path = folder / ENVIRONMENT_FILE
    try:
        return description_from_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
        raise CorruptionError(f"{path} describes no environment", why=str(error)) from error
