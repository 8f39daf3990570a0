"""Events for ``kubectl describe``: written once, counted when they repeat, and rate-limited."""

from collections import deque
from datetime import UTC, datetime
from typing import Literal

import msgspec

from tidegate.admission.kubernetes.access import Access
from tidegate.runtime.kubernetes_api import Api

CONTROLLER = "tidegate.dev/admission"
# The same reason about the same object within SERIES_S is one series; its count is written every SERIES_WRITE_S.
SERIES_S = 600.0
SERIES_WRITE_S = 60.0
# New events per minute, and series in memory: the first events of a burst suffice.
PER_MINUTE_MAX = 10
SERIES_MAX = 64
NOTE_CHARS_MAX = 1000


class Regarding(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``regarding``: the object that an event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str
    uid: str = ""


class ClusterEvent(msgspec.Struct, frozen=True):
    """One event for operators. ``reason`` in CamelCase, ``note`` a sentence."""

    reason: str
    note: str
    regarding: Regarding
    type: Literal["Normal", "Warning"] = "Normal"
    action: str = "Reconcile"


class _Series(msgspec.Struct):
    """A written event, and how often it happened."""

    name: str
    first_at_s: float
    written_at_s: float
    count: int = 1
    written: int = 1


class EventWriter:
    """Writes events; those beyond the rate are dropped and counted, and an outage loses them."""

    def __init__(self, api: Api, access: Access, *, controller: str = CONTROLLER) -> None:
        """``controller``: who reports them."""
        self._api, self._access, self._controller = api, access, controller
        self._folder = f"/apis/events.k8s.io/v1/namespaces/{access.namespace}/events"
        self._series: dict[tuple[str, str, str], _Series] = {}
        self._recent: deque[float] = deque(maxlen=PER_MINUTE_MAX)
        self.num_dropped = 0

    async def write(self, happened: ClusterEvent, *, now_s: float, wall_s: float) -> None:
        """Write an event, or count it into its series.

        Raises:
            TidegateError: the API server rejected it or did not answer.
        """
        key = (happened.reason, happened.regarding.kind, happened.regarding.name)
        series = self._series.get(key)
        if series is not None and now_s - series.first_at_s <= SERIES_S:
            series.count += 1
            if now_s - series.written_at_s >= SERIES_WRITE_S:
                await self._write_series(series, now_s=now_s, wall_s=wall_s)
            return
        if len(self._recent) == PER_MINUTE_MAX and now_s - self._recent[0] < 60.0:
            self.num_dropped += 1
            return
        self._recent.append(now_s)
        if len(self._series) >= SERIES_MAX:
            del self._series[next(iter(self._series))]
        name = f"{happened.regarding.name}.{int(wall_s * 1e6):x}"
        await self._api.create(self._folder, self._body(happened, name, wall_s=wall_s), dict)
        self._series.pop(key, None)
        self._series[key] = _Series(name, first_at_s=now_s, written_at_s=now_s)

    async def flush(self, *, now_s: float, wall_s: float) -> None:
        """Write the counts that are due.

        Raises:
            TidegateError: the API server rejected one or did not answer.
        """
        for series in list(self._series.values()):
            if series.count > series.written and now_s - series.written_at_s >= SERIES_WRITE_S:
                await self._write_series(series, now_s=now_s, wall_s=wall_s)

    async def _write_series(self, series: _Series, *, now_s: float, wall_s: float) -> None:
        series.written_at_s, series.written = now_s, series.count
        body = {"series": {"count": series.count, "lastObservedTime": _time(wall_s)}}
        await self._api.patch(f"{self._folder}/{series.name}", body)

    def _body(self, happened: ClusterEvent, name: str, *, wall_s: float) -> dict[str, object]:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": self._access.namespace},
            "eventTime": _time(wall_s),
            "reportingController": self._controller,
            "reportingInstance": self._access.identity,
            "reason": happened.reason,
            "action": happened.action,
            "type": happened.type,
            "note": happened.note[:NOTE_CHARS_MAX],
            "regarding": msgspec.to_builtins(happened.regarding),
        }


def _time(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
