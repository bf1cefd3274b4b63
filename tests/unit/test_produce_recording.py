"""Recordings that cannot be sent: what is wrong is said before a broker is asked for."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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
    with pytest.raises(RecordingError, match=rf"{says}.*\. Nothing was sent$"):
        replay(path, "127.0.0.1:1")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.parquet"])
def test_large_messages_come_in_small_pieces(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "PIECE_BYTES", 4096)
    path = tmp_path / name
    values = [
        b'{"symbol": "%d", "note": "%s"}' % (n, random.randbytes(500).hex().encode())
        for n in range(40)
    ]
    if name.endswith(".parquet"):
        table = pa.table({"topic": ["a"] * 40, "value": pa.array(values, pa.binary())})
        pq.write_table(table, path, compression="none")
    else:
        text = b"\n".join(values)
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    found = list(recording.pieces(path, "a"))
    assert all(sum(map(len, each.values.to_pylist())) < 2 * 4096 for each in found)
    assert [v for each in found for v in each.values.to_pylist()] == values
    assert np.concatenate([each.lines for each in found]).tolist() == list(range(1, 41))


def test_a_line_without_an_end_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MOST_LINE_BYTES", len(GOOD))
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD * 3))
    assert sum(len(each.lines) for each in recording.pieces(path)) == 3
    path.write_bytes(gzip.compress(GOOD + b" " * 2_000_000))
    with pytest.raises(RecordingError, match=r"rows\.jsonl\.gz:2: the line is longer than"):
        list(recording.pieces(path))
