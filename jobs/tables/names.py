"""Names of data files: who wrote a file, and for which number. Pure.

| name | written by | number |
|---|---|---|
| `<epoch>-<attempt>-<slot>-<k>.parquet` | a step of the streaming job | epoch |
| `cleanup-<session>-<n>-<attempt>-<k>.parquet` | cleanup, for range n of the session | n |
| `compact-<version>-<attempt>-<k>.parquet` | compaction of one table | its transaction |
| `entry-<n>-<attempt>.parquet` | an append to `journal`, `commands` or `sessions` | n |

A name is fresh: `attempt` is new for every attempt, so that nothing is ever replaced. What a
name says is all that the garbage rules know about a file that no table names.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple


class Origin(NamedTuple):
    """Who wrote a data file."""

    writer: Literal["epoch", "cleanup", "compact", "entry"]
    number: int
    session: str = ""
    """For `cleanup`: the session that was cleaned."""


_PATTERNS = (
    ("cleanup", re.compile(r"cleanup-(?P<session>.+)-(?P<number>\d+)-[^-]+-\d+\.parquet")),
    ("compact", re.compile(r"compact-(?P<number>\d+)-[^-]+-\d+\.parquet")),
    ("entry", re.compile(r"entry-(?P<number>\d+)-[^-]+\.parquet")),
    ("epoch", re.compile(r"(?P<number>\d+)-.+-\d+-\d+\.parquet")),
)


def data_name(epoch: int, attempt: str, slot: int, k: int) -> str:
    """Name of file number `k` that a slot writes in an epoch."""
    return f"{epoch}-{_attempt(attempt)}-{slot}-{k}.parquet"


def cleanup_name(session: str, n: int, attempt: str, k: int) -> str:
    """Name of file number `k` of a session's cleanup range `n`."""
    return f"cleanup-{session}-{n}-{_attempt(attempt)}-{k}.parquet"


def compact_name(version: int, attempt: str, k: int) -> str:
    """Name of file number `k` of a table's compaction `version`."""
    return f"compact-{version}-{_attempt(attempt)}-{k}.parquet"


def entry_name(n: int, attempt: str) -> str:
    """Name of the file that holds row `n` of a numbered table."""
    return f"entry-{n}-{_attempt(attempt)}.parquet"


def origin(path: str) -> Origin | None:
    """Who wrote the file at `path` (folders in front do not matter); None for foreign names."""
    name = path.rsplit("/", 1)[-1]
    for writer, pattern in _PATTERNS:
        if match := pattern.fullmatch(name):
            found = match.groupdict()
            return Origin(writer, int(found["number"]), found.get("session", ""))  # type: ignore[arg-type]
    return None


def _attempt(attempt: str) -> str:
    if not attempt or "-" in attempt or "/" in attempt:
        raise ValueError(
            f"an attempt's name holds no '-' and no '/', and is not empty: {attempt!r}"
        )
    return attempt
