"""How many verdicts of verifiers failed, and the most frequent reason, as one sentence. No IO.

Kept beyond the life of the environment worker that reported the reason.
"""

from collections.abc import Mapping

from tidegate.catalogue import environment as environment_stats
from tidegate.wire.stats import ServiceStats


class VerifierProblems:
    """The reason that an environment worker reported last."""

    def __init__(self) -> None:
        self._reason = ""

    def receive(self, stats: ServiceStats) -> None:
        """Follow the report of one environment worker; others are ignored."""
        if stats.service == "environment":
            self._reason = stats.labels.get(environment_stats.VERIFIER_FAILURE, "") or self._reason

    def sentence(self, totals: Mapping[str, float]) -> str:
        """The share of failed verdicts with the reason, and what to do; empty without one. ``totals``: of workers."""
        failures = totals.get(environment_stats.VERIFIER_FAILURES, 0.0)
        if failures <= 0.0:
            return ""
        verdicts = max(failures, totals.get(environment_stats.VERDICTS, 0.0))
        reason = f", most often {self._reason.rstrip('.')}" if self._reason else ""
        return (
            f"{failures / verdicts:.1%} of verdicts failed ({failures:,.0f} of {verdicts:,.0f}){reason};"
            " correct the verifier (traceback: log event verifier_failed), or choose by environment.on_error what a"
            " failure costs"
        )
