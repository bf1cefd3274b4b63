"""The one way in which a session's date is written, and read: `YYYY-MM-DD`.

Sessions are compared as text and are part of file names, so one day must never have two names.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated

from pydantic import AfterValidator

from spillway_schemas.exits import USAGE

_PARTS = re.compile(r"(\d{4})\D?(\d{1,2})\D?(\d{1,2})", re.ASCII)


class SessionDateError(ValueError):
    """A text is not a session's date (exit code 2)."""

    exit_code = USAGE


def is_session_date(text: str) -> bool:
    """Whether a text is a date in canonical form, e.g. `2026-01-05`."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def session_date(text: str) -> str:
    """The text itself when it is a date in canonical form.

    Raises `SessionDateError`, which names the canonical form of what may have been meant, or says
    that there is no such day.
    """
    if is_session_date(text):
        return text
    raise SessionDateError(f"{text!r} is not a session's date: {_hint(text)}")


def _hint(text: str) -> str:
    found = _PARTS.fullmatch(text.strip())
    if not found:
        return "write YYYY-MM-DD, e.g. 2026-01-05"
    year, month, day = map(int, found.groups())
    try:
        return f"write {date(year, month, day).isoformat()}"
    except ValueError:
        return f"there is no day {year:04}-{month:02}-{day:02}"


SessionDate = Annotated[str, AfterValidator(session_date)]
"""A session's date in a pydantic model."""
