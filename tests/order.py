"""In which order tests run: long files first, so that no worker is left with one at the end.

Workers of `--dist worksteal` begin with equal parts of the list, one behind the other, and take
from the ends of the others' parts when they have no more. The last worker begins with short ones,
for each day has JVMs and servers of its own, and what waits for them has only so much time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

LONG_FILES = tuple(
    f"tests/integration/test_{name}.py"
    for name in (
        "days",
        "airflow_day",
        "trees",
        "inputs",
        "relocation",
        "windows",
        "recipes",
        "terminal",
        "airflow_failures",
        "formats_day",
        "secured",
        "outer_day",
    )
)
"""Files with days of a minute or more, those of most minutes first."""

T = TypeVar("T")


def long_files_first(items: Sequence[T], files: Sequence[str], workers: int) -> list[T]:
    """The items in another order: each of `workers` equal parts but the last begins with some of
    the long files; a single part, too.

    `files`: that of each item. Items of a file stay together and in their order.
    """
    parts: list[list[T]] = [[] for _ in range(workers)]
    there = set(files)
    for i, long in enumerate(each for each in LONG_FILES if each in there):
        parts[i % max(workers - 1, 1)] += [
            item for item, file in zip(items, files, strict=True) if file == long
        ]
    rest = [item for item, file in zip(items, files, strict=True) if file not in LONG_FILES]
    found: list[T] = []
    for i, part in enumerate(parts):
        left = len(items) - len(found)
        room = max(left // (workers - i) - len(part), 0)
        found += [*part, *rest[:room]]
        del rest[:room]
    return [*found, *rest]
