"""What is wrong with a stream and its days, judged from a status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Mapping[str, Any]
"""What `spillway status --json` prints."""


@dataclass(frozen=True)
class Finding:
    """One thing that was seen."""

    kind: Literal["start", "restart", "held", "not sealed", "not complete", "fine"]
    says: str
    session: str = ""
    """Of a day that is late, or has as many results as it may have."""


def look_at_stream(
    status: Status | None,
    *,
    running: bool,
    age_s: float | None,
    stalled_s: float,
    starting_s: float,
) -> Finding:
    """Whether the stream has to be started, or may have to be restarted.

    The newest sign of life counts: an epoch, a claim of the journal, the start. After a start and a
    claim the stream reads again what its state has lost, which takes minutes, before it commits an
    epoch. `restart` is a suspicion: rows may have come this instant, after a silent hour. It holds
    when a second look, `stalled_s` later, finds it too, and the journal where it was
    (`stood_still`).

    Args:
        status: None before there is a journal.
        running: whether the service is there.
        age_s: for how long it has been there at least, in seconds; None when that is not known.
        stalled_s: how old the last epoch may become, in seconds, while rows wait.
        starting_s: how old a claim may become, or the stream, with no newer sign of life.
    """
    if status is None:
        what = "there is no journal yet"
        return Finding("fine", what) if running else Finding("start", f"no stream runs, and {what}")
    lag, epoch_s, claim_s = (
        status[each] for each in ("lag_rows", "last_epoch_age_s", "last_claim_age_s")
    )
    waits = "how many rows wait is not known" if lag is None else f"{lag:,} rows wait"
    last = (
        "there was no epoch yet" if epoch_s is None else f"the last epoch was {epoch_s:.0f} s ago"
    )
    if not running:
        return Finding("start", f"no stream runs; {waits}, {last}")
    signs = [
        (epoch_s, stalled_s, last),
        (claim_s, starting_s, f"it claimed the journal {claim_s or 0:.0f} s ago, no epoch since"),
        (age_s, starting_s, f"it began {age_s or 0:.0f} s ago and has done nothing since"),
    ]
    if held := status["intake_held"]:
        return Finding("fine", f"the stream runs and reads no more rows: {held}")
    known = [(s, limit_s, says) for s, limit_s, says in signs if s is not None]
    since_s, limit_s, last = min(known, default=(0.0, stalled_s, last), key=lambda sign: sign[0])
    if lag and since_s > limit_s:
        return Finding("restart", f"{waits} and {last}, over {limit_s:g} s")
    return Finding("fine", f"the stream runs; {waits}, {last}")


def held_intake(status: Status | None) -> list[Finding]:
    """That no more rows are read, which a person has to decide about; none where they are."""
    held = (status or {}).get("intake_held")
    return [Finding("held", held, (status or {})["session"])] if held else []


def stood_still(before: Status | None, now: Status | None) -> bool:
    """Whether neither an epoch nor a claim has come between two looks."""
    if before is None or now is None:
        return False
    return all(before[each] == now[each] for each in ("term", "epoch"))


def late_days(
    status: Status | None, *, now_ms: int, closes_ms: Mapping[str, int], limit_s: float
) -> list[Finding]:
    """Days that are not sealed or not complete in time; none when all is well.

    Args:
        status: None before there is a journal.
        now_ms: the present, ms since 1970.
        closes_ms: when the sessions of the status that are trading days close.
        limit_s: how long after its close a day may take until it is sealed and complete.
    """
    found = []
    for session in (status or {}).get("sessions", ()):
        close_ms = closes_ms.get(session["session"])
        if close_ms is None or now_ms < close_ms + limit_s * 1000:
            continue
        date = session["session"]
        late = f"{date} closed {(now_ms - close_ms) / 60_000:.0f} min ago"
        verdict = session["verdict"]
        if session["ended_at"] is None:
            says = f"{late} and is not sealed ({session['stage']})"
            found.append(Finding("not sealed", says, date))
        elif verdict is None:
            why = f": {session['unproved']}" if session["unproved"] else " yet"
            found.append(Finding("not complete", f"{late} and is not proved complete{why}", date))
        elif not verdict["complete"]:
            lacks = (
                "its input is lost"
                if verdict["missing"] is None
                else f"{verdict['missing']} results missing, {verdict['doubled']} doubled"
            )
            found.append(Finding("not complete", f"{late} and is not complete: {lacks}", date))
    return found
