"""What a program wrote, read from its Delta table with no code of any of the programs.

The digest is the sum of a hash of every row's content (the join's values, without coordinates
and times of ours), so it depends on which rows there are and how often, not on their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb
from deltalake import DeltaTable

from benchmarks.side_by_side.contests import TIME, Contest


@dataclass(frozen=True)
class Outcome:
    """A table's content."""

    rows: int
    digest: str
    files: int
    bytes: int


def of_join(table: Path, contest: Contest, since_us: int | None = None) -> Outcome:
    """Rows, digest, files and bytes of a table of joined rows.

    `since_us`: only results whose latest row happened then or later (microseconds since 1970).
    """
    digest = f"sum(hash({', '.join(contest.digested)})::hugeint)"
    if since_us is None:
        return _outcome(table, digest)
    times = ", ".join(f"epoch_us({topic}_{TIME})" for topic in contest.fields)
    return _outcome(table, digest, f"greatest({times}) >= {since_us}")


def of_copy(table: Path) -> Outcome:
    """Rows, files and bytes of the copied rows (their digest is of the coordinates)."""
    return _outcome(table, 'sum(hash(topic, "partition", "offset")::hugeint)')


def _outcome(table: Path, digest: str, which: str = "true") -> Outcome:
    files = DeltaTable(str(table)).file_uris()
    size = sum(Path(file.removeprefix("file://")).stat().st_size for file in files)
    if not files:
        return Outcome(0, "0", 0, 0)
    with duckdb.connect() as database:
        query = f"SELECT count(*), coalesce({digest}, 0) FROM read_parquet($files) WHERE {which}"
        found = database.execute(query, {"files": files}).fetchone()
    assert found is not None
    return Outcome(int(found[0]), str(found[1]), len(files), size)
