"""Recordings that cannot be sent: what is wrong is said before a broker is asked for."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from spillway.produce import recording
from spillway.produce import replay as replaying
from spillway.produce.recording import RecordingError
from spillway.produce.replay import replay

GOOD = b'{"symbol": "A", "ts": "2026-01-05T14:30:00Z", "shares": 7}\n'


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("gone.jsonl", None, "there is no such file"),
        ("rows.csv", b"a,b\n", "the name must end in .jsonl, .ndjson"),
        ("rows.jsonl", GOOD * 5 + b"{", "rows.jsonl:6: not JSON"),
        ("rows.jsonl.gz", gzip.compress(GOOD * 5, mtime=0)[:-9], "cannot be read to its end"),
        ("rows.parquet", b"PAR1", "cannot be read to its end"),
    ],
)
def test_a_recording_is_read_to_its_end_before_anything_is_sent(
    name: str,
    content: bytes | None,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "PIECE_ROWS", 2)
    monkeypatch.setattr(replaying, "Sender", lambda *_: pytest.fail("nothing may be sent"))
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecordingError, match=says):
        replay(path, "127.0.0.1:1")
