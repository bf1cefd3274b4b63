"""A stream that only tells of trouble, in place of the real one."""

from __future__ import annotations

from typing import Any

import pytest

from spillway.storage import StorageError
from spillway.stream.run import Watcher


def stream_tells(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let `spillway stream` tell `text` as a trouble, and end."""

    class Stream:
        def __init__(self, *arguments: Any) -> None:
            [watcher] = [each for each in arguments if isinstance(each, Watcher)]
            watcher.on_trouble(text)
            raise StorageError("that is all")

    monkeypatch.setattr("spillway.stream.service.Stream", Stream)
