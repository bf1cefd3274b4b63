"""The one way in which a session's date is written, and read: `YYYY-MM-DD`.

Sessions are compared as text and are part of file names, so one day must never have two names.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated

from pydantic import AfterValidator

_PARTS = re.compile(r"(\d{4})\D?(\d{1,2})\D?(\d{1,2})", re.ASCII)


class SessionDateError(ValueError):
    """A text is not a session's date (exit code 2)."""


def is_session_date(text: str) -> bool:
    """Whether a text is a date in canonical form, e.g. `2026-01-05`."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def session_date(text: str) -> str:
    """The text itself when it is a date in canonical form.

    Raises `SessionDateError`, which names the canonical form of what may have been meant.
    """
    if is_session_date(text):
        return text
    meant = _meant(text)
    hint = f"write {meant}" if meant else "write YYYY-MM-DD, e.g. 2026-01-05"
    raise SessionDateError(f"{text!r} is not a session's date: {hint}")


def _meant(text: str) -> str | None:
    found = _PARTS.fullmatch(text.strip())
    try:
        return date(*map(int, found.groups())).isoformat() if found else None
    except ValueError:
        return None


SessionDate = Annotated[str, AfterValidator(session_date)]
"""A session's date in a pydantic model."""
