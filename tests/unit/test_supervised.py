"""The supervised query without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from spillway.stream import supervised
from spillway.stream.supervised import EpochHooks, SupervisedQuery


class Writer:
    """Takes what a writer of Spark takes, and makes the checkpoint as Spark does."""

    def foreachBatch(self, _: Any) -> Writer:  # noqa: N802
        return self

    def option(self, _: str, folder: str) -> Writer:
        self.folder = Path(folder)
        return self

    def trigger(self, **_: Any) -> Writer:
        return self

    def start(self) -> None:
        self.folder.mkdir(parents=True)
        (self.folder / "offsets").write_text("0")


class Rows:
    """A streaming frame."""

    @property
    def writeStream(self) -> Writer:  # noqa: N802
        return Writer()


def test_a_start_leaves_no_checkpoint_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that runs for weeks starts its query again with every change of its intake."""
    monkeypatch.setattr(supervised, "stream_rows", lambda *_: Rows())
    hooks = EpochHooks(lambda *_: 0, *[lambda: False] * 3)
    folder = tmp_path / "checkpoints" / "w" / "1"
    query = SupervisedQuery(MagicMock(), {}, folder, hooks, trigger_s=1, available_now=False)
    for number in (1, 2, 3):
        query.start({}, 100)
        assert query.checkpoint == folder / str(number)
        assert list(folder.iterdir()) == [query.checkpoint]
