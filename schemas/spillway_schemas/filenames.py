"""Names of the tables' data files: who wrote a file, and for which number. Pure.

| name | written by | number |
|---|---|---|
| `<epoch>-<attempt>-<slot>-<k>.parquet` | a step of the streaming job | epoch |
| `cleanup-<session>-<n>-<attempt>-<k>.parquet` | cleanup, for range n of the session | n |
| `correct-<session>-<n>-<attempt>-<k>.parquet` | a correction of a closed session | its revision |
| `compact-<version>-<attempt>-<k>.parquet` | compaction of one table | its transaction |
| `entry-<n>-<attempt>.parquet` | an append to `journal`, `commands` or `sessions` | n |

Beside them, `<n>-<sha256>.snapshot` is a snapshot of the journal after entry n, named by its bytes,
and `<session>-<first>-<last>-<attempt>-<sha256>.parquet` the archived journal entries of a session.

A name is fresh: `attempt` is new for every attempt, so that nothing is ever replaced. Those of the
streaming job begin with the turn of the job that made them (`turn`). What a name says is all that
the garbage rules know about a file that no table names. So this is the only place that spells
names, and `origin` knows exactly those that can be spelt here: numbers have no leading zeros,
sessions are dates, an attempt is 12 or 16 hexadecimal digits, and the only folder in front is a
partition's. Anything else is somebody else's file, and stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from spillway_schemas.session_date import is_session_date

Writer = Literal["epoch", "cleanup", "correct", "compact", "entry"]


class FileOrigin(NamedTuple):
    """Who wrote a data file."""

    writer: Writer
    number: int
    session: str = ""
    """For `cleanup` and `correct`: the session that was cleaned or corrected."""


class Archived(NamedTuple):
    """What the name of a file of archived journal entries says."""

    session: str
    first: int
    last: int
    """Numbers of its first and its last entry."""
    attempt: str
    digest: str
    """SHA-256 of its bytes, in hex."""


_NUMBER = r"(?:0|[1-9][0-9]*)"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ATTEMPT = r"(?:[0-9a-f]{12}|[0-9a-f]{16})"
"""Long enough that no date and no count looks like one; 14 digits would be a time."""
_FOLDER = rf"(?:session_date=(?P<day>{_DATE})/)?"
_OF_SESSIONS: tuple[Literal["cleanup", "correct"], ...] = ("cleanup", "correct")
_PATTERNS: tuple[tuple[Writer, re.Pattern[str]], ...] = (
    ("epoch", re.compile(rf"{_FOLDER}(?P<n>{_NUMBER})-{_ATTEMPT}-{_NUMBER}-{_NUMBER}\.parquet")),
    *(
        (
            writer,
            re.compile(
                rf"{_FOLDER}{writer}-(?P<session>{_DATE})-(?P<n>{_NUMBER})-{_ATTEMPT}-{_NUMBER}"
                r"\.parquet"
            ),
        )
        for writer in _OF_SESSIONS
    ),
    ("compact", re.compile(rf"{_FOLDER}compact-(?P<n>{_NUMBER})-{_ATTEMPT}-{_NUMBER}\.parquet")),
    ("entry", re.compile(rf"entry-(?P<n>{_NUMBER})-{_ATTEMPT}\.parquet")),
)


_SHA256 = r"[0-9a-f]{64}"
_SNAPSHOT = re.compile(rf"(?P<n>{_NUMBER})-(?P<digest>{_SHA256})\.snapshot")
_ARCHIVED = re.compile(
    rf"(?P<session>{_DATE})-(?P<first>{_NUMBER})-(?P<last>{_NUMBER})-(?P<attempt>{_ATTEMPT})"
    rf"-(?P<digest>{_SHA256})\.parquet"
)


TURN_DIGITS = 7


def turn(term: int, job: int) -> str:
    """How the attempts of one job at an epoch begin: the driver's term, and a count of its
    jobs at that epoch. As texts, those of later jobs are greater."""
    return f"{min(term, 0xFFFFFF):06x}{min(job, 0xF):x}"


def turn_of(attempt: str) -> str:
    """The turn that an attempt begins with."""
    return attempt[:TURN_DIGITS]


def data_name(epoch: int, attempt: str, slot: int, k: int) -> str:
    """Name of file number `k` that a slot writes in an epoch."""
    return f"{_number(epoch)}-{_attempt(attempt)}-{_number(slot)}-{_number(k)}.parquet"


def cleanup_name(session: str, n: int, attempt: str, k: int) -> str:
    """Name of file number `k` of a session's cleanup range `n`."""
    return f"cleanup-{_session(session)}-{_tail(n, attempt, k)}"


def correct_name(session: str, revision: int, attempt: str, k: int) -> str:
    """Name of file number `k` of a revision of a closed session: its rows, or their results."""
    return f"correct-{_session(session)}-{_tail(revision, attempt, k)}"


def correction_app(session: str) -> str:
    """The application id of a session's revisions, in the tables that have something of them."""
    return f"correct/{session}"


def compact_name(version: int, attempt: str, k: int) -> str:
    """Name of file number `k` of a table's compaction `version`."""
    return f"compact-{_number(version)}-{_attempt(attempt)}-{_number(k)}.parquet"


def entry_name(n: int, attempt: str) -> str:
    """Name of the file that holds row `n` of a numbered table."""
    return f"entry-{_number(n)}-{_attempt(attempt)}.parquet"


def snapshot_name(n: int, digest: str) -> str:
    """Name of a snapshot after entry `n`. `digest`: SHA-256 of its bytes, in hex."""
    return f"{_number(n)}-{_sha256(digest)}.snapshot"


def snapshot_origin(name: str) -> tuple[int, str] | None:
    """Entry and digest of a snapshot, by its name; None for another file's."""
    match = _SNAPSHOT.fullmatch(name)
    return None if match is None else (int(match["n"]), match["digest"])


def archive_name(archived: Archived) -> str:
    """Name of the file that holds a session's archived journal entries."""
    numbers = f"{_number(archived.first)}-{_number(archived.last)}"
    if archived.first > archived.last:
        raise ValueError(f"an archive holds entries, not {numbers}")
    tail = f"{_attempt(archived.attempt)}-{_sha256(archived.digest)}"
    return f"{_session(archived.session)}-{numbers}-{tail}.parquet"


def archive_origin(name: str) -> Archived | None:
    """The inverse of `archive_name`; None for another file's."""
    match = _ARCHIVED.fullmatch(name)
    if match is None or not is_session_date(match["session"]):
        return None
    first, last = int(match["first"]), int(match["last"])
    if first > last:
        return None
    return Archived(match["session"], first, last, match["attempt"], match["digest"])


def data_path(name: str, partition: Mapping[str, str]) -> str:
    """Path of a file below its table's folder; `partition` is empty or names the session."""
    if not partition:
        return name
    if set(partition) != {"session_date"}:
        raise ValueError(f"tables are partitioned by session_date, not by {sorted(partition)}")
    return f"session_date={_session(partition['session_date'])}/{name}"


def origin(path: str) -> FileOrigin | None:
    """Who wrote the file at `path` below its table's folder; None for a foreign one."""
    for writer, pattern in _PATTERNS:
        if match := pattern.fullmatch(path):
            found = match.groupdict()
            day, session = found.get("day") or "", found.get("session") or ""
            if not all(is_session_date(each) for each in (day, session) if each):
                return None
            if day and session and day != session:
                return None
            return FileOrigin(writer, int(found["n"]), session)
    return None


def _tail(n: int, attempt: str, k: int) -> str:
    return f"{_number(n)}-{_attempt(attempt)}-{_number(k)}.parquet"


def _sha256(digest: str) -> str:
    if not re.fullmatch(_SHA256, digest):
        raise ValueError(f"a SHA-256 is 64 hexadecimal digits, not {digest!r}")
    return digest


def _number(value: int) -> int:
    if value < 0:
        raise ValueError(f"a number in a file's name is not negative: {value}")
    return value


def _session(session: str) -> str:
    if not is_session_date(session):
        raise ValueError(f"a session is a date such as 2026-01-05, not {session!r}")
    return session


def _attempt(attempt: str) -> str:
    if not re.fullmatch(_ATTEMPT, attempt):
        raise ValueError(f"an attempt's name is 12 or 16 hexadecimal digits, not {attempt!r}")
    return attempt
