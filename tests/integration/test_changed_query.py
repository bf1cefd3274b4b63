"""A query that changes between two sessions, on the real parts: both are exact, each by its own.

In mid-session it is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import deltalake
import pytest

from spillway.calendar import close_ms
from tests.integration.day import STREAMS, Day, chained, messages
from tests.integration.failpoints import THEN

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

FIRST, SECOND = "2026-01-05", "2026-01-06"
ROWS = 2_000


def test_the_next_session_takes_a_changed_query_up(
    tmp_path: Path,
    broker: str,
    topics: Callable[..., dict[str, str]],
    spark_env: dict[str, str],
) -> None:
    """A stream by the changed one is refused while the first session is open, and the way out that
    it names is taken. By then the second's rows are there, and the first reads none of them."""
    names = topics(*STREAMS, partitions=2)
    # With all that was spilled back in memory there would be nothing to clean up.
    extra = {"SESSION__BOUNDARY": "calendar", "SPILL__REACTIVATION": "off"}
    day = Day(
        tmp_path / "day", broker, names, spark_env, slots=1, budget_bytes=96 << 10, extra=extra
    )
    old = day.folder / "old.toml"
    (day.folder / "query.toml").rename(old)
    two = {stream: names[stream] for stream in ("stock", "volume")}
    changed = replace(day, topics=two)  # writes the query's file, with two streams
    try:
        day.produce(messages(0, ROWS, keys=ROWS), at_ms=close_ms("XNYS", FIRST) - 2000)
        as_it_was = ["--set", f"query={old}", "--set", "session.boundary=command"]
        begun = [*as_it_was, "stream", "--session", FIRST, "--available-now"]
        code = day.run(*begun, THEN, "stream", "--available-now")
        said = " ".join(day.tail().split())
        assert code == 2, said
        assert "the query has changed in mid-session" in said
        assert f"stream review: goes: topic {names['review']}" in said
        assert f"spillway stream --until-sealed {FIRST} --as-begun" in said
        entries = day.entries()
        assert [each["kind"] for each in entries[:2]] == ["genesis", "claim"]
        assert {each["kind"] for each in entries[2:]} == {"epoch"}, "nothing was written"

        for seed, date, rows in ((1, FIRST, ROWS // 4), (2, SECOND, 2 * ROWS)):
            day.produce(messages(seed, rows, keys=ROWS), at_ms=close_ms("XNYS", date) - 1000)
        commands = [
            ["stream", "--until-sealed", FIRST, "--as-begun"],
            ["stream", "--until-sealed", SECOND],
            # By the settings both are of the changed query.
            ["cleanup", "--session", FIRST],
            ["verify", "--session", FIRST, "--json"],
            ["cleanup", "--session", SECOND],
            ["verify", "--session", SECOND, "--json"],
        ]
        day.ok(*chained(*commands))
        said = (day.folder / "log.txt").read_text()
        assert f"{SECOND} goes on by a changed query" in said
        assert f"stream review: goes: topic {names['review']}" in said
        first_end = day.sealed(FIRST)["end"]
        assert changed.sealed(SECOND)["start"] == {
            topic: first_end[topic] for topic in two.values()
        }
        assert day.check(FIRST)["cleanup"] > 0
        assert changed.check(SECOND)["cleanup"] > 0
        verdicts = [line for line in said.splitlines() if line.startswith('{"session"')]
        assert ['"complete": true' in line for line in verdicts] == [True, True]

        # Whoever reads the table finds both days in it.
        root = str(day.folder / "warehouse" / "results")
        found = deltalake.DeltaTable(root).to_pyarrow_table()
        assert found.num_rows == len(day.results())
        coordinates = found.select(["session_date", "review_offset"]).to_pylist()
        assert {r["session_date"] for r in coordinates if r["review_offset"] is None} == {SECOND}
    finally:
        day.clean()
