"""What is wrong with a stream and its days, judged from a status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Finding:
    """One thing that was seen."""

    kind: Literal["start", "restart", "not sealed", "not complete", "fine"]
    says: str


def look(
    status: Mapping[str, Any] | None,
    *,
    running: bool,
    now_ms: int,
    closes_ms: Mapping[str, int],
    stalled_s: float,
    limit_s: float,
) -> list[Finding]:
    """Findings, never none.

    Args:
        status: `spillway status --json`; None before there is a journal.
        running: whether the service is there.
        now_ms: the present, ms since 1970.
        closes_ms: when the sessions of the status that are trading days close.
        stalled_s: how long the journal may stand still while rows wait.
        limit_s: how long after its close a day may take until it is sealed and complete.
    """
    found = [_stream(status, running, stalled_s)]
    for session in (status or {}).get("sessions", ()):
        close_ms = closes_ms.get(session["session"])
        if close_ms is None or now_ms < close_ms + limit_s * 1000:
            continue
        late = f"{session['session']} closed {(now_ms - close_ms) / 60_000:.0f} min ago"
        verdict = session["verdict"]
        if session["ended_at"] is None:
            found.append(Finding("not sealed", f"{late} and is not sealed ({session['stage']})"))
        elif verdict is None:
            found.append(Finding("not complete", f"{late} and is not proved complete yet"))
        elif not verdict["complete"]:
            lacks = f"{verdict['missing']} results missing, {verdict['doubled']} doubled"
            found.append(Finding("not complete", f"{late} and is not complete: {lacks}"))
    return found


def _stream(status: Mapping[str, Any] | None, running: bool, stalled_s: float) -> Finding:
    if status is None:
        what = "there is no journal yet"
        return Finding("fine", what) if running else Finding("start", f"no stream runs, and {what}")
    lag, age_s = status["lag_rows"], status["last_epoch_age_s"]
    waits = "how many rows wait is not known" if lag is None else f"{lag:,} rows wait"
    last = "there was no epoch yet" if age_s is None else f"the last epoch was {age_s:.0f} s ago"
    if not running:
        return Finding("start", f"no stream runs; {waits}, {last}")
    if lag and age_s is not None and age_s > stalled_s:
        return Finding("restart", f"{waits} and {last}, over {stalled_s:g} s")
    return Finding("fine", f"the stream runs; {waits}, {last}")
