"""The history of the staleness budget: which ``max_lag`` each update was judged by, for the audit (I1, issue 18).

A batch is judged by the store when it is leased, so the budget of an update is the one under which its batch was
leased; ``batches.budget`` keeps it until the commit. The table ``budgets`` has a row where the budget of a lineage
begins or changes, in the order of its steps: the budget of an update is that of the last row at or before its step.
Commits of a lineage arrive in the order of their steps, so rows are only added. NULL: the budget is unknown. A ledger
that an older program began has no row for its earlier updates, which are judged by none and counted as ``unnoted``.

The rows are covered by the hash chain. They are few (one a lineage, one a change) and never removed.
"""

import sqlite3

from tidegate.core.audit import BudgetTotals
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.trajectory_store.folded_ids import read_folded
from tidegate.trajectory_store.hash_chain import BudgetNote, note

BUDGETS_TABLE = """
CREATE TABLE IF NOT EXISTS budgets (
    lineage TEXT NOT NULL,
    from_step INTEGER NOT NULL,
    max_lag INTEGER,
    PRIMARY KEY (lineage, from_step)
) WITHOUT ROWID
"""
# Of an update of `u`.
_IN_FORCE = (
    "(SELECT b.max_lag FROM budgets b WHERE b.lineage = u.lineage AND b.from_step <= u.step"
    " ORDER BY b.from_step DESC LIMIT 1)"
)
_USES = f"SELECT u.lineage, u.step, u.lag AS lag, {_IN_FORCE} AS budget FROM uses u"
# Of a sampled batch only the largest lag of its units is kept.
_SAMPLED = (
    f"SELECT u.lineage, u.step, u.max_lag AS lag, {_IN_FORCE} AS budget FROM batches u"
    " WHERE u.state = 'committed' AND u.num_samples > 0"
)


def add_missing(db: sqlite3.Connection) -> None:
    """Give a ledger that an older program began its place for budgets, inside the caller's transaction."""
    db.execute(BUDGETS_TABLE)
    if not any(column == "budget" for _, column, *_ in db.execute("PRAGMA table_info(batches)")):
        db.execute("ALTER TABLE batches ADD COLUMN budget INTEGER")


def note_committed(db: sqlite3.Connection, version: PolicyVersion, max_lag: int | None) -> None:
    """The update of ``version`` is committed, whose batch was leased under ``max_lag`` (versions; None: unknown)."""
    before = db.execute(
        "SELECT max_lag FROM budgets WHERE lineage = ? ORDER BY from_step DESC LIMIT 1", (version.lineage,)
    ).fetchone()
    if before != (max_lag,):
        db.execute("INSERT INTO budgets VALUES (?, ?, ?)", (version.lineage, version.step, max_lag))
        note(db, BudgetNote(version.lineage, version.step, max_lag))


def note_consumed(db: sqlite3.Connection, batch_id: str, version: PolicyVersion) -> None:
    """A checkpoint holds the update of ``version``; what the ledger has of it is not changed.

    Its budget is that of its batch's lease, and unknown where a power cut took that.
    """
    (newest,) = db.execute(
        "SELECT max(step) FROM batches WHERE lineage = ? AND state = 'committed'", (version.lineage,)
    ).fetchone()
    if newest is None or version.step > newest:
        found = db.execute("SELECT budget FROM batches WHERE batch_id = ?", (batch_id,)).fetchone()
        note_committed(db, version, found[0] if found else None)


def judge_uses(db: sqlite3.Connection) -> BudgetTotals:
    """Every use that the ledger has, and every sampled batch, against the budget in force when it was judged."""
    folded = read_folded(db)
    over, unnoted = folded.over_budget, folded.unnoted
    worst = "of rows that were folded since" if over else ""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'budgets'").fetchone():
        (num_uses,) = db.execute("SELECT count(*) FROM uses").fetchone()
        return BudgetTotals(over=over, unnoted=unnoted + num_uses, worst=worst)
    (widest,) = db.execute("SELECT max(max_lag) FROM budgets").fetchone()
    for query in (_USES, _SAMPLED):
        more_over, more_unnoted = count_over(db, query)
        over, unnoted = over + more_over, unnoted + more_unnoted
        if more_over:
            lineage, step, lag, budget = db.execute(
                f"SELECT * FROM ({query}) WHERE lag > budget ORDER BY lag - budget DESC, step LIMIT 1"
            ).fetchone()
            version = PolicyVersion(lineage=LineageName(lineage), step=step)
            worst = f"a lag of {lag} under max_lag {budget}, in the update of {version}"
    return BudgetTotals(over=over, unnoted=unnoted, widest=widest, worst=worst)


def judge_folding(db: sqlite3.Connection, span: tuple[int, int]) -> tuple[int, int]:
    """Uses over their budget, and without one, of the rows after ``span[0]`` up to ``span[1]``, before they go."""
    return count_over(db, f"{_USES} WHERE u.seq > ? AND u.seq <= ?", span)


def count_over(db: sqlite3.Connection, query: str, values: tuple[int, ...] = ()) -> tuple[int, int]:
    """Rows of ``query`` whose lag is over their budget, and rows without a budget."""
    over, unnoted = db.execute(
        f"SELECT coalesce(sum(lag > budget), 0), coalesce(sum(budget IS NULL), 0) FROM ({query})", values
    ).fetchone()
    return over, unnoted
