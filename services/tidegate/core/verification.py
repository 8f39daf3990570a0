"""What verifying a ledger against its hash chain found."""

from typing import Literal

import msgspec

FindingKind = Literal["changed", "lost", "invented"]


class Finding(msgspec.Struct, frozen=True):
    """What is not as the chain says. ``what`` names it: a trajectory, an entry, a use, a batch."""

    kind: FindingKind
    what: str
    why: str


class Verification(msgspec.Struct, frozen=True):
    """What was verified and what was found. ``head``: the newest entry's digest in hexadecimal digits.

    ``num_findings`` counts those beyond ``findings``, too. ``num_payloads``: those still on disk.
    ``num_folded``: rows that were folded into counters before, and whose chain goes on from them.
    """

    num_entries: int
    num_rows: int
    num_payloads: int
    head: str
    findings: list[Finding]
    num_findings: int
    num_folded: int = 0

    @property
    def intact(self) -> bool:
        """Whether everything is as it was written."""
        return self.num_findings == 0
