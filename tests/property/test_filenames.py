"""Names of data files: what the encoder spells the decoder knows, and nothing else.

Deletion trusts the decoder, so it must not know a single name that we would not write: whatever
it knows, the encoder must spell in the very same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date

from hypothesis import example, given
from hypothesis import strategies as st

from spillway_schemas.filenames import (
    FileOrigin,
    cleanup_name,
    compact_name,
    correct_name,
    data_name,
    data_path,
    entry_name,
    origin,
)

numbers = st.integers(0, 10**9)
attempts = st.text("0123456789abcdef", min_size=12, max_size=12) | st.text(
    "0123456789abcdef", min_size=16, max_size=16
)
sessions = st.dates(date(1, 1, 1)).map(date.isoformat)


@given(numbers, attempts, numbers, numbers, sessions)
def test_what_is_written_is_known(n: int, attempt: str, slot: int, k: int, day: str) -> None:
    folder = {"session_date": day}
    names = {
        data_name(n, attempt, slot, k): FileOrigin("epoch", n),
        cleanup_name(day, n, attempt, k): FileOrigin("cleanup", n, day),
        correct_name(day, n, attempt, k): FileOrigin("correct", n, day),
        compact_name(n, attempt, k): FileOrigin("compact", n),
    }
    for name, expected in names.items():
        assert origin(data_path(name, {})) == origin(data_path(name, folder)) == expected
    assert origin(entry_name(n, attempt)) == FileOrigin("entry", n)


SPELLINGS: dict[str, Callable[..., str]] = {
    "epoch": lambda day, parts: in_folder(day, data_name(*numbered(parts, "nann"))),
    "cleanup": lambda day, parts: in_folder(
        day, cleanup_name("-".join(parts[1:4]), *numbered(parts[4:], "nan"))
    ),
    "correct": lambda day, parts: in_folder(
        day, correct_name("-".join(parts[1:4]), *numbered(parts[4:], "nan"))
    ),
    "compact": lambda day, parts: in_folder(day, compact_name(*numbered(parts[1:], "nan"))),
    "entry": lambda day, parts: in_folder(day, entry_name(*numbered(parts[1:], "na"))),
}


def in_folder(day: str, name: str) -> str:
    return data_path(name, {"session_date": day} if day else {})


def numbered(parts: list[str], kinds: str) -> list[int | str]:
    return [int(p) if k == "n" else p for p, k in zip(parts, kinds, strict=True)]


near_misses = st.from_regex(
    re.compile(
        r"(session_date=[0-9]{4}-[01]?[0-9]-[0-3]?[0-9]/|[a-z]{1,6}/)?"
        r"((?:cleanup|correct)-[0-9]{4}-[01]?[0-9]-[0-3]?[0-9]-|compact-|entry-)?"
        r"(0?[0-9]{1,4}-)?([0-9a-fA-F]{12}|[0-9a-f]{16}|[0-9a-z-]{1,16})(-0?[0-9]{1,3}){0,3}"
        r"\.parquet(\.crc)?\n?"
    ),
    fullmatch=True,
)


@given(near_misses | st.text())
@example("2026-01-05-1.parquet")
@example("2026-11-15-1.parquet")
@example("7-aaaaaaaaaaaa-00-1.parquet")
@example("٧-aaaaaaaaaaaa-0-1.parquet")
def test_what_is_known_would_be_written_so(path: str) -> None:
    made = origin(path)
    if made is None:
        return
    folder, _, name = path.rpartition("/")
    parts = name.removesuffix(".parquet").split("-")
    assert SPELLINGS[made.writer](folder.removeprefix("session_date="), parts) == path
