"""Sections of the run file for the processes beside a run, which `tidegate up` starts (``launch.companions``)."""

from typing import Annotated, Literal

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.runtime.object_storage.urls import scheme_of

DeadlineSeconds = Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)]


class TrackConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One experiment tracker that gets the run while it trains; a text is the ``tracker`` alone.

    ``tracker``: its package is an extra of the same name. ``to``: a folder, or the address of the tracker's service;
    empty: ``.tidegate/TRACKER`` in the working directory. ``end_deadline_s``: seconds that it has for the rest when the
    run is over; then it is stopped, and `tidegate track` sends the rest.
    """

    tracker: Literal["tensorboard", "mlflow", "wandb", "trackio"]
    to: str = ""
    end_deadline_s: DeadlineSeconds = 20.0

    @property
    def place(self) -> str:
        """``to`` or its default."""
        return self.to or f".tidegate/{self.tracker}"


class CallbackConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Own code that is told of a run's updates, evaluations, checkpoints and end; a text is the ``code`` alone.

    ``code``: ``my_callbacks.py:Notify``, a module with a name, or a name that an installed package registered
    (``tidegate.callbacks``). ``end_deadline_s``: seconds that it has for the rest when the run is over.
    """

    code: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    end_deadline_s: DeadlineSeconds = 20.0


NoticeKind = Literal["end", "failure", "slo"]


class NotifyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One webhook that `tidegate up` posts JSON to: when the run ends or fails, and when an objective is violated.

    ``url``: http or https; the run folder keeps it. ``url_env``: the environment variable that holds it instead, where
    the address is a secret. ``headers_env``: by header, the variable with its value. ``on``: what is posted.
    ``end_deadline_s``: seconds to deliver the last notice.
    """

    url: str = ""
    url_env: str = ""
    headers_env: dict[str, str] = {}
    on: tuple[NoticeKind, ...] = ("end", "failure", "slo")
    end_deadline_s: DeadlineSeconds = 30.0

    def __post_init__(self) -> None:
        """Refuse a section without one address.

        Raises:
            ConfigError: there is none, there are two, or it is of another scheme.
        """
        if bool(self.url) == bool(self.url_env):
            raise ConfigError("notify needs one address", fix="set notify.url or notify.url_env, not both")
        if self.url:
            check_webhook_url(self.url, setting="notify.url")


class BackupConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Copies of the run folder in object storage, from which an empty machine goes on; a text is ``to`` alone.

    ``to``: ``s3://bucket/prefix``, ``gs://``, ``az://``, on one machine also ``file:///folder``; each run has its own
    folder there, by its id. Credentials come from the environment. ``every_s``: seconds from one backup to the next;
    what came after the last one is lost with the machine. ``keep``: backups kept; older ones are deleted.
    ``end_deadline_s``: seconds for the last backup when the run is over; then it is stopped, and `tidegate backup`
    makes it.
    """

    to: str
    every_s: Annotated[float, msgspec.Meta(ge=1.0, le=604_800.0)] = 600.0
    keep: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    end_deadline_s: DeadlineSeconds = 300.0

    def __post_init__(self) -> None:
        """Refuse what is no address of object storage.

        Raises:
            ConfigError: it is none.
        """
        scheme_of(self.to, setting="backup.to")


class Webhook(msgspec.Struct, frozen=True):
    """A webhook with its secrets, as the process that posts gets it."""

    url: str
    headers: dict[str, str]
    on: tuple[NoticeKind, ...]


def check_webhook_url(url: str, *, setting: str) -> None:
    """Refuse what is no address of a web server, without repeating it.

    Raises:
        ConfigError: it is none.
    """
    if not url.startswith(("http://", "https://")) or any(mark.isspace() for mark in url):
        raise ConfigError(f"{setting} is no address of a web server", fix="begin it with https://")
