"""What a correction came to, for people."""

from __future__ import annotations

from spillway.corrections.job import Corrected
from spillway.report.words import times_text
from spillway_schemas.corrections import Revision


def corrected_lines(done: Corrected) -> list[str]:
    """The outcome, and what comes next."""
    lines = [f"{done.session}: finished {_told(each)}" for each in done.finished]
    if done.unfinished:
        left = times_text(done.unfinished, "unfinished revision")
        lines.append(f"{done.session}: {left} will be finished first")
    own = done.revision
    if own is None:
        return lines or [f"{done.session}: nothing is new, and nothing was left unfinished"]
    if done.already:
        return [*lines, f"{done.session}: that is {_told(own)}. Nothing was done"]
    if done.planned:
        return [
            *lines,
            f"{done.session}: revision {own.revision} would add "
            f"{times_text(own.results, 'result')}, from {times_text(own.rows, 'row')} of "
            f"{own.source}. Nothing was done",
        ]
    return [
        *lines,
        f"{done.session}: {_told(own)}, in {done.seconds:.1f} s",
        f"Next: `spillway verify --session {done.session}` proves the day with it",
    ]


def _told(each: Revision) -> str:
    return (
        f"revision {each.revision}: {times_text(each.results, 'result')} added, from "
        f"{times_text(each.rows, 'row')} of {each.source}"
    )
