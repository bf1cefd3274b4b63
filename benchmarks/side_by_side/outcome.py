"""What a program wrote, read from its Delta table with no code of any of the programs.

The digest is the sum of a hash of every row's content (the join's values, without coordinates
and times of ours), so it depends on which rows there are and how often, not on their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb
from deltalake import DeltaTable

from benchmarks.side_by_side.contests import Contest


@dataclass(frozen=True)
class Outcome:
    """A table's content."""

    rows: int
    digest: str
    files: int
    bytes: int


def of_join(table: Path, contest: Contest) -> Outcome:
    """Rows, digest, files and bytes of a table of joined rows."""
    return _outcome(table, f"sum(hash({', '.join(contest.digested)})::hugeint)")


def of_copy(table: Path) -> Outcome:
    """Rows, files and bytes of the copied rows (their digest is of the coordinates)."""
    return _outcome(table, 'sum(hash(topic, "partition", "offset")::hugeint)')


def _outcome(table: Path, digest: str) -> Outcome:
    files = DeltaTable(str(table)).file_uris()
    size = sum(Path(file.removeprefix("file://")).stat().st_size for file in files)
    if not files:
        return Outcome(0, "0", 0, 0)
    with duckdb.connect() as database:
        query = f"SELECT count(*), coalesce({digest}, 0) FROM read_parquet($files)"
        found = database.execute(query, {"files": files}).fetchone()
    assert found is not None
    return Outcome(int(found[0]), str(found[1]), len(files), size)
