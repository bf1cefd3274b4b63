"""Days of a left and a full join on a real broker and a real Spark: cleaned, and proved twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from spillway.calendar import close_ms
from tests.integration.day import STREAMS, VALUE, Day, chained, messages

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

DATE = "2026-01-05"


@pytest.mark.parametrize(
    "optional",
    [
        pytest.param(("review",), id="left"),
        pytest.param(STREAMS, id="full", marks=pytest.mark.soak),
    ],
)
def test_unmatched_rows_come_once_after_the_close(
    tmp_path: Path,
    broker: str,
    topics: Callable[..., dict[str, str]],
    spark_env: dict[str, str],
    optional: tuple[str, ...],
) -> None:
    """Some keys have no review, or no row of any other stream: in memory alone, and in several
    generations of what was spilled."""
    day = Day(
        tmp_path / "day",
        broker,
        topics(*STREAMS, partitions=2),
        spark_env,
        budget_bytes=64 << 10,
        optional=optional,
        extra={"SESSION__BOUNDARY": "calendar"},
    )
    day.produce(messages(1, 2_500, keys=1_200), at_ms=close_ms("XNYS", DATE) - 1000)
    commands = [
        ["stream", "--session", DATE, "--until-sealed", DATE],
        ["cleanup", "--session", DATE, "--plan", "--json"],
        ["cleanup", "--session", DATE],
        # Joins all keys with Spark beside the sums without it.
        ["verify", "--session", DATE, "--exhaustive", "--json"],
    ]
    day.ok(*chained(*commands))
    said = [json.loads(line) for line in day.tail(400).splitlines() if line.startswith('{"sess')]
    ahead, verdict = said
    phases = day.check(DATE)
    found, _ = day.found(DATE)
    lacking = Counter({r: n for r, n in found.items() if (None, None, None) in r})
    # Of each stream that may be lacking some result lacks the row.
    lacks = {s for r in lacking for s, part in zip(STREAMS, r[1:], strict=True) if None in part}
    assert lacks == {*optional}
    unmatched = lacking.total()
    assert 0 < unmatched == ahead["unmatched"] == verdict["details"]["unmatched"]
    assert ahead["missing"] + unmatched == phases["cleanup"]
    assert ahead["missing"] > 0
    given = [row for row in day.results(DATE) if row["phase"] == "run-time"]
    assert given
    assert all(row[f"{s}_{VALUE[s]}"] is not None for row in given for s in STREAMS)
    assert (verdict["complete"], verdict["expected"]) == (True, found.total())
    day.clean()
