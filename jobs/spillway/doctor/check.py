"""A check's result, and the words that all checks use."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]

RUNBOOK = "see docs/runbook.md in spillway's source"
"""The remedy of what does not say its own."""


@dataclass(frozen=True)
class Check:
    """What one look found."""

    name: str
    status: Status
    what: str
    mend: str = ""
    """How to mend it; empty when it is ok."""

    def as_dict(self) -> dict[str, str]:
        """As it goes into JSON."""
        return asdict(self)


def failed(name: str, text: str) -> Check:
    """A failure by an error's text: what happened, then, in sentences of their own, what to do."""
    what, _, mend = text.partition(". ")
    return Check(name, "fail", what, mend or RUNBOOK)


def days(ms: int) -> str:
    """Milliseconds for people."""
    hours = ms / 3_600_000
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"
