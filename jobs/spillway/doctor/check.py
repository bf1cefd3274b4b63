"""A check's result, and the words that all checks use."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]

RUNBOOK = "see the runbook in docs/"
"""The remedy of what takes more than a line to mend."""


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


def days(ms: int) -> str:
    """Milliseconds for people."""
    hours = ms / 3_600_000
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"
