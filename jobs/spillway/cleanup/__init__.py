"""Cleanup: the Spark job that appends a sealed session's missing results, each once.

| module | idea |
|---|---|
| `plan` | pure: what is to be done, and why it may not be done yet |
| `task` | what runs in Spark's workers: numpy and pyarrow, no deltalake |
| `job` | the driver: surveys, computes ranges in parallel, commits them in order |
| `command` | `spillway cleanup`: settings in, progress and a report out |

Importing this package imports neither Spark nor deltalake (workers import it too).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from spillway_schemas.query import Query
    from spillway_schemas.settings import Settings


def cleanup_command(
    session: str, settings: Settings, query: Query, console: Console | None
) -> dict[str, Any]:
    """Run `spillway cleanup`; see `spillway.cleanup.command`."""
    from spillway.cleanup.command import run

    return run(session, settings, query, console)
