"""The operator's credential for calls to the services of a run: of its folder's owner, or of admission's pod."""

import os
from pathlib import Path

from tidegate.launch.run_record import RunRecord
from tidegate.runtime.call_credentials import CallToken, FixedToken, derive_token, find_token

# In a run folder: the credentials of its services.
CREDENTIALS = "credentials"
# In a pod: the folder where the chart mounts those of the pod.
FOLDER_VARIABLE = "TIDEGATE_CREDENTIALS_DIR"
FOLDER_DEFAULT = "/etc/tidegate-credentials"


def pod_credentials() -> Path:
    """The folder of a pod's credentials."""
    return Path(os.environ.get(FOLDER_VARIABLE) or FOLDER_DEFAULT)


def operator_token(record: RunRecord) -> CallToken:
    """What the command line and the supervisor call services with.

    Raises:
        NotFoundError: in a pod that holds no operator's credential.
        ConfigError: the credential cannot be read.
    """
    if record.cluster:
        return find_token(pod_credentials(), "operator")
    return FixedToken(derive_token(record.call_secret, "operator"))
