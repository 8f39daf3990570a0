"""Where a service writes its counters and gauges; the lifecycle publishes the whole board twice a second."""

from tidegate.wire.stats import ServiceStats


class StatsBoard:
    """Names are fixed in code, so the board's size is bounded by the number of call sites."""

    def __init__(self, *, service: str, instance: str, started_at_s: float) -> None:
        """An empty board in the state ``starting``."""
        self.service = service
        self.instance = instance
        self.started_at_s = started_at_s
        self.state = "starting"
        self._values: dict[str, float] = {}
        self._labels: dict[str, str] = {}

    def set(self, name: str, value: float) -> None:
        """A gauge."""
        self._values[name] = value

    def add(self, name: str, value: float = 1.0) -> None:
        """A monotonic counter."""
        self._values[name] = self._values.get(name, 0.0) + value

    def label(self, name: str, text: str) -> None:
        """A short text, such as the served version."""
        self._labels[name] = text

    def value(self, name: str) -> float:
        """The current value, 0 if never written."""
        return self._values.get(name, 0.0)

    def snapshot(self, *, at_s: float) -> ServiceStats:
        """The whole board at one moment."""
        return ServiceStats(
            service=self.service,
            instance=self.instance,
            state=self.state,
            at_s=at_s,
            started_at_s=self.started_at_s,
            values=dict(self._values),
            labels=dict(self._labels),
        )
