"""The completions of versions in a report; every text of the run is escaped, and shown as it is."""

import html
from collections.abc import Sequence

from tidegate.cli.version_samples import VersionSamples, facts, shortened
from tidegate.core.ids import PolicyVersion
from tidegate.trajectory_store.version_samples import ShownCompletion

# Of a run, at equal distances, the first and the last among them.
VERSIONS_MAX = 8


def shown_versions(versions: Sequence[PolicyVersion]) -> list[PolicyVersion]:
    """At most ``VERSIONS_MAX`` of the versions, in order."""
    count = min(VERSIONS_MAX, len(versions))
    if count < 2:
        return list(versions)
    return [versions[index * (len(versions) - 1) // (count - 1)] for index in range(count)]


def samples_section(shown: Sequence[VersionSamples]) -> str:
    """A part of the page that is folded by version, with the newest open; empty without samples."""
    if not shown:
        return ""
    parts = [
        f"<details{' open' if each is shown[-1] else ''}><summary>{_text(each.version)}</summary>"
        f"{''.join(map(_sample, each.samples))}</details>"
        for each in shown
    ]
    lead = "The best, the worst and a random completion of some versions' updates. All: <code>tidegate samples</code>."
    return (
        f'<h2 class="part">Samples</h2><section class="wide samples"><p>{lead}</p>{"".join(parts)}</section>'
    )


def _sample(sample: ShownCompletion) -> str:
    record = sample.record
    log = f"<pre>{_text(shortened(record.verifier_log))}</pre>" if record.verifier_log else ""
    return (
        f"<h3>{_text(sample.why)} · {_text(facts(sample))}</h3>"
        f"<pre>{_text(shortened(record.prompt))}</pre><pre><b>{_text(shortened(record.completion))}</b></pre>{log}"
    )


def _text(value: object) -> str:
    return html.escape(str(value))
