"""The independent proof that a session is complete: `spillway.verify.proof.verify`.

| module | idea |
|---|---|
| `arithmetic` | the test of one key, vectorised over keys (pure) |
| `workers` | what runs in Spark's Python workers: decode, judge |
| `rows` | input from Kafka and results from the table, as hashed rows (Spark frames) |
| `difference` | the batch join that names what is missing or doubled (Spark) |
| `progress` | what it is doing, told a line at a time |
| `proof` | from a session's sealed entry to the verdict |
| `command` | `spillway verify`: settings in, a report out, and its table |

Beyond `spillway.decode` nothing of the engine is used: not its hash, not its join, not its files.
Importing this package imports neither Spark nor deltalake (workers import it too).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from spillway_schemas.query import Query
    from spillway_schemas.settings import Settings


def verify_command(
    session: str, settings: Settings, query: Query, *, exhaustive: bool = False
) -> dict[str, Any]:
    """Run `spillway verify`; see `spillway.verify.command`. Progress goes to stderr."""
    from spillway.verify.progress import Progress, to_stderr

    with Progress(session, to_stderr) as progress:
        progress.step("reading the journal")
        # After the first line: what this imports takes seconds.
        from spillway.verify.command import run

        return run(session, settings, query, exhaustive=exhaustive, progress=progress)


def verdict_table(report: dict[str, Any]) -> Table:
    """A report of `verify_command` for the terminal."""
    from spillway.verify.command import table

    return table(report)
