"""The statistics of one service instance; the lifecycle publishes them twice a second, the exporter once a period."""

import math

from tidegate.catalogue.kinds import Counter, Gauge, Text
from tidegate.core.utf8_text import encodable
from tidegate.wire.stats import VALUE_MAX, ServiceStats


class StatsBoard:
    """Takes declared statistics only (``tidegate.catalogue``), so their number is bounded."""

    def __init__(self, *, service: str, instance: str, started_at_s: float) -> None:
        self.service = service
        self.instance = instance
        self.started_at_s = started_at_s
        self.state = "starting"
        self._values: dict[str, float] = {}
        self._labels: dict[str, str] = {}

    def add(self, counter: Counter, value: float = 1.0) -> None:
        """Increase a counter; adding 0 makes it reported."""
        self._values[counter] = self._values.get(counter, 0.0) + value

    def set(self, statistic: Counter | Gauge, value: float) -> None:
        """Set a gauge, or a counter that is kept elsewhere."""
        self._values[statistic] = value

    def clear(self, gauge: Gauge) -> None:
        """Report a gauge no longer, as if it had never been set."""
        self._values.pop(gauge, None)

    def label(self, text: Text, value: str) -> None:
        """Set a text."""
        self._labels[text] = value

    def value(self, statistic: Counter | Gauge) -> float:
        """The current value, 0 if never written."""
        return self._values.get(statistic, 0.0)

    def snapshot(self, *, at_s: float) -> ServiceStats:
        """The whole board at one moment, each number in the range of a report, each text as a message takes it.

        A report with another number is refused whole: after a loss of 1e17 the learner would look absent.
        One with another text cannot be sent, and a service that does not report ends.
        """
        return ServiceStats(
            service=self.service,
            instance=self.instance,
            state=self.state,
            at_s=at_s,
            started_at_s=self.started_at_s,
            values={
                name: min(max(value, -VALUE_MAX), VALUE_MAX)
                for name, value in self._values.items()
                if not math.isnan(value)
            },
            labels={text: encodable(value) for text, value in self._labels.items()},
        )
