"""Text from libraries and from outside, as it may go to a terminal or into a log.

Messages of delta-rs carry colours whatever they are written to, and a topic, a path or a value can
carry any character: an escape code in a log hides text, and one on a terminal can do worse.
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CAUSE = re.compile(r"\s*\n\s*↳\s*")
"""How delta-rs begins the cause of an error, below it."""


def plain(text: str) -> str:
    """The text without escape codes, other control characters made visible; lines stay lines."""
    text = _CAUSE.sub(": ", _ESCAPE.sub("", text)).rstrip()
    return "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in text)
