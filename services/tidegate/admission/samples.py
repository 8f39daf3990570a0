"""Whole-system samples: one JSON line a second in ``admission/stats.jsonl``, which reports plot.

A line is flat but for one section: ``at_s`` and ``bottleneck``, every signal of the diagnosis by its
name (``core.balance.Signals``), and ``values``, which holds ``<service>.<statistic>`` (as ``Observations.merged``
says) and ``stream.<kind>`` (queued messages). ``problems``, where there are any: sentences about actors.
"""

from typing import Any

import msgspec

from tidegate.core.balance import Bottleneck, Signals

FILE_NAME = "stats.jsonl"


class SystemSample(msgspec.Struct, frozen=True):
    """The whole system at one moment."""

    at_s: float
    bottleneck: Bottleneck
    signals: Signals
    values: dict[str, float]
    problems: list[str] = []

    def line(self) -> bytes:
        """One line of the file."""
        signals: dict[str, Any] = msgspec.to_builtins(self.signals)
        fields = {"at_s": self.at_s, "bottleneck": self.bottleneck, **signals, "values": self.values}
        if self.problems:
            fields["problems"] = self.problems
        return msgspec.json.encode({**fields, "queue_depth_batches": self.signals.depth_batches()}) + b"\n"
