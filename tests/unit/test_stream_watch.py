"""What the watch makes of a status."""

from __future__ import annotations

from typing import Any

import pytest

from spillway_airflow.watch import Finding, look

MIN = 60_000


def status(lag: int | None, age_s: float | None, *sessions: dict[str, Any]) -> dict[str, Any]:
    return {"lag_rows": lag, "last_epoch_age_s": age_s, "sessions": list(sessions)}


def seen(found: dict[str, Any] | None, *, running: bool = True, now_ms: int = 0) -> list[Finding]:
    return look(
        found,
        running=running,
        now_ms=now_ms,
        closes_ms={"2026-01-05": 100 * MIN},
        stalled_s=120,
        limit_s=3600,
    )


@pytest.mark.parametrize(
    ("found", "running", "kind", "says"),
    [
        (None, True, "fine", "no journal yet"),
        (None, False, "start", "no stream runs"),
        (status(0, 500), True, "fine", "0 rows wait"),  # Kafka is silent: nothing to do
        (status(7, 119), True, "fine", "7 rows wait"),
        (status(7, 121), True, "restart", "7 rows wait and the last epoch was 121 s ago"),
        (status(None, 500), True, "fine", "not known"),  # Kafka is away: a restart helps nobody
        (status(7, None), True, "fine", "no epoch yet"),  # it has just begun
        (status(0, 3), False, "start", "no stream runs; 0 rows wait"),
    ],
)
def test_the_stream(found: Any, kind: str, says: str, *, running: bool) -> None:
    (only,) = seen(found, running=running)
    assert only.kind == kind
    assert says in only.says


def day(ended: str | None, verdict: dict[str, Any] | None, date: str = "2026-01-05") -> Any:
    return {"session": date, "ended_at": ended, "stage": "open", "verdict": verdict}


COMPLETE = {"complete": True, "missing": 0, "doubled": 0}


@pytest.mark.parametrize(
    ("session", "minutes", "kind", "says"),
    [
        (day(None, None), 159, None, ""),  # 59 minutes after its close
        (day(None, None), 160, "not sealed", "closed 60 min ago and is not sealed (open)"),
        (day("then", None), 160, "not complete", "not proved complete yet"),
        (day("then", COMPLETE), 160, None, ""),
        (
            day("then", {"complete": False, "missing": 3, "doubled": 1}),
            160,
            "not complete",
            "3 results missing, 1 doubled",
        ),
        (day(None, None, "2026-01-04"), 10_000, None, ""),  # no trading day: nothing is due
    ],
)
def test_days_that_are_late(session: Any, minutes: int, kind: str | None, says: str) -> None:
    first, *late = seen(status(0, 1, session), now_ms=minutes * MIN)
    assert first.kind == "fine"
    assert [each.kind for each in late] == ([kind] if kind else [])
    assert all(says in each.says for each in late)
