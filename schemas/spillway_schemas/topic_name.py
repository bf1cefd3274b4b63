"""What Kafka takes as the name of a topic."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def topic_name(name: str) -> str:
    """The name itself. Raises ValueError, with the rule, for one that Kafka refuses."""
    if _NAME.fullmatch(name) is None or name in (".", ".."):
        raise ValueError(
            f"{name!r} is no name of a topic: letters, digits, '.', '_' and '-', 249 at most"
        )
    return name
