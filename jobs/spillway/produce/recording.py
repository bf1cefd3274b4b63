"""Recordings: files of recorded rows, read for a replay and written from a scenario.

Two shapes of recording, as JSON lines (`.jsonl`, `.ndjson`, also `.gz`) or Parquet:

* *records*: `topic` and `value`, and if known `key` and `kafka_ms` (ms since 1970). In JSON lines
  `value` is an object (sent as compact JSON), text (sent as it is), or null (a tombstone); bytes
  that are no text are in `value_base64` instead. In Parquet it is binary or text.
* *messages* of one topic: each row is a message. The topic is given, or is the file's name
  without its ending. The record key is the message's `symbol` where it has one.

A row's time is its `kafka_ms`, else the `ts` of its message.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spillway.produce.generate import StreamGenerator, sources
from spillway_schemas.exits import USAGE
from spillway_schemas.scenario import Scenario
from spillway_schemas.topic_name import topic_name

PIECE_ROWS = 20_000
PIECE_BYTES = 16 << 20
"""Rows are read in pieces of so many, or of so many bytes and one row."""
MOST_LINE_BYTES = 64 << 20
"""No message of Kafka's is as long; a file without line ends is."""


class RecordingError(ValueError):
    """A recording that cannot be read; the message says where and why."""

    exit_code = USAGE


@dataclass(frozen=True)
class Piece:
    """Some rows of a recording."""

    topics: list[str]
    keys: pa.Array
    """Arrow binary (n,); null is no key."""
    values: pa.Array
    """Arrow binary (n,); null is a tombstone."""
    at_ms: npt.NDArray[np.int64]
    """When each row was recorded, ms since 1970; -1 where that is not known."""
    lines: npt.NDArray[np.int64]
    """Where each row stands in the file, from 1."""


def pieces(path: Path, topic: str | None = None) -> Iterator[Piece]:
    """The rows of a recording, in order. Raises RecordingError."""
    if not path.is_file():
        what = "there is no such file"
        if path.exists():
            what = "it is a folder; name a file" if path.is_dir() else "it is no regular file"
        raise RecordingError(f"{path}: {what}")
    if path.suffix == ".parquet":
        read = _from_parquet
    elif _json_name(path) is not None:
        read = _from_json
    else:
        raise RecordingError(
            f"{path}: the name must end in .jsonl, .ndjson (or one of them and .gz) or .parquet"
        )
    try:
        for piece in read(path, topic):
            for name in dict.fromkeys(piece.topics):
                _must_be_a_topic(path, name)
            yield piece
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        raise RecordingError(f"{path}: cannot be read to its end: {error}") from None


def _must_be_a_topic(path: Path, name: str) -> None:
    try:
        topic_name(name)
    except ValueError as error:
        raise RecordingError(f"{path}: {error}. Name one with --topic") from None


def _json_name(path: Path) -> str | None:
    name = path.name.removesuffix(".gz")
    for ending in (".jsonl", ".ndjson"):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return None


def _from_json(path: Path, topic: str | None) -> Iterator[Piece]:
    fallback = topic or _json_name(path) or ""
    with _opened(path) as file:
        lines = _lines(path, file)
        while some := _piece_of(lines):
            rows = [_json_row(path, n, line, fallback) for n, line in some]
            yield _piece(rows, np.array([n for n, _ in some], dtype=np.int64))


def _lines(path: Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines that have anything, with their numbers. Raises RecordingError."""
    for n, line in enumerate(iter(lambda: file.readline(MOST_LINE_BYTES + 1), b""), 1):
        if len(line) > MOST_LINE_BYTES:
            raise RecordingError(
                f"{path}:{n}: the line is longer than {MOST_LINE_BYTES >> 20} MiB: each message "
                "needs a line of its own"
            )
        if line.strip():
            yield n, line


def _piece_of(lines: Iterator[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The next of them."""
    found: list[tuple[int, bytes]] = []
    size = 0
    for n, line in islice(lines, PIECE_ROWS):
        found.append((n, line))
        size += len(line)
        if size >= PIECE_BYTES:
            break
    return found


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with path.open("rb") as file:
        if path.suffix != ".gz":
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield cast("IO[bytes]", unpacked)


Row = tuple[str, bytes | None, bytes | None, int]
"""Topic, key, value, time in ms (-1: unknown)."""


def _json_row(path: Path, number: int, line: bytes, fallback: str) -> Row:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise RecordingError(f"{path}:{number}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise RecordingError(f"{path}:{number}: a JSON object is needed")
    if "topic" not in found or not ({"value", "value_base64"} & found.keys()):
        return _message_row(fallback, line.strip(), found)
    value = _recorded_value(path, number, found)
    key = found.get("key")
    at_ms = found.get("kafka_ms")
    if at_ms is None:
        at_ms = _ts_ms(found["value"]) if isinstance(found.get("value"), dict) else -1
    return (
        str(found["topic"]),
        key.encode() if isinstance(key, str) else None,
        value,
        int(at_ms),
    )


def _recorded_value(path: Path, number: int, found: dict[str, Any]) -> bytes | None:
    if "value_base64" in found:
        try:
            return base64.b64decode(found["value_base64"], validate=True)
        except (ValueError, TypeError) as error:
            raise RecordingError(f"{path}:{number}: value_base64: {error}") from None
    value = found["value"]
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _message_row(topic: str, raw: bytes, message: Mapping[str, Any]) -> Row:
    symbol = message.get("symbol")
    return topic, symbol.encode() if isinstance(symbol, str) else None, raw, _ts_ms(message)


def _ts_ms(message: Mapping[str, Any]) -> int:
    try:
        at = datetime.fromisoformat(message["ts"])
        return round(at.timestamp() * 1000) if at.tzinfo is not None else -1
    except (KeyError, TypeError, ValueError, OverflowError):
        return -1


def _piece(rows: Iterable[Row], lines: npt.NDArray[np.int64]) -> Piece:
    topics, keys, values, at_ms = zip(*rows, strict=True)
    return Piece(
        list(topics),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        np.array(at_ms, dtype=np.int64),
        lines,
    )


def _from_parquet(path: Path, topic: str | None) -> Iterator[Piece]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        line = 1
        for batch in file.iter_batches(_rows_a_piece(file.metadata)):
            lines = np.arange(line, line + len(batch))
            line += len(batch)
            if {"topic", "value"} <= set(batch.schema.names):
                yield _records(path, batch, lines)
            else:
                found = (_parquet_message(topic or path.stem, row) for row in batch.to_pylist())
                yield _piece(found, lines)


def _rows_a_piece(file: Any) -> int:
    """So many rows have `PIECE_BYTES` as the file has them, where its rows are of one kind. A value
    that a dictionary repeats is larger in memory."""
    groups = [file.row_group(n) for n in range(file.num_row_groups)]
    size: int = sum(each.total_byte_size for each in groups)
    rows: int = file.num_rows
    return min(PIECE_ROWS, max(1, PIECE_BYTES * rows // max(size, 1)))


def _records(path: Path, batch: Any, lines: npt.NDArray[np.int64]) -> Piece:
    names = set(batch.schema.names)
    try:
        values = pc.cast(batch["value"], pa.binary())
        keys = (
            pc.cast(batch["key"], pa.binary())
            if "key" in names
            else pa.nulls(len(batch), pa.binary())
        )
        at_ms = np.full(len(batch), -1, dtype=np.int64)
        if "kafka_ms" in names:
            column = batch["kafka_ms"]
            if pa.types.is_timestamp(column.type):
                column = pc.cast(column, pa.timestamp("ms", column.type.tz), safe=False)
            at_ms = np.asarray(pc.fill_null(pc.cast(column, pa.int64()), -1))
    except (pa.ArrowException, KeyError) as error:
        raise RecordingError(
            f"{path}: topic (text), value and key (binary or text) and kafka_ms (whole number or "
            f"timestamp) are needed: {error}"
        ) from None
    return Piece(batch["topic"].to_pylist(), keys, values, at_ms, lines)


def _parquet_message(topic: str, row: Mapping[str, Any]) -> Row:
    def plain(value: object) -> object:
        if isinstance(value, datetime):
            return value.isoformat().replace("+00:00", "Z")
        return str(value)

    message = {name: value for name, value in row.items() if value is not None}
    raw = json.dumps(message, ensure_ascii=False, separators=(",", ":"), default=plain)
    return _message_row(topic, raw.encode(), json.loads(raw))


# ------------------------------------------------------------------------------- writing a file


def record(scenario: Scenario, path: Path) -> int:
    """Write a scenario as a recording of JSON lines, in the order of arrival; the rows written."""
    made = sources(scenario)
    start_ms = round(scenario.start.timestamp() * 1000)
    rows = sorted((r for source in made for r in _recorded(source, start_ms)), key=lambda r: r[0])
    with path.open("w", encoding="utf-8") as file:
        for _, line in rows:
            file.write(line + "\n")
    return len(rows)


def _recorded(source: StreamGenerator, start_ms: int) -> Iterator[tuple[float, str]]:
    for plan in source.plan:
        chunk = source.chunk(plan.number)
        keys = source.record_keys.take(pa.array(chunk.keys)).to_pylist()
        for key, value, due in zip(keys, chunk.values.to_pylist(), chunk.due_s, strict=True):
            row: dict[str, Any] = {
                "topic": source.topic,
                "key": key,
                "kafka_ms": start_ms + int(due * 1000),
            }
            try:
                parsed = json.loads(value) if value else None
                plain = isinstance(parsed, dict) and value == _compact(parsed)
                row["value"] = parsed if plain else value.decode() if value is not None else None
            except UnicodeDecodeError:
                row["value_base64"] = base64.b64encode(value).decode()
            except ValueError:
                row["value"] = value.decode()
            yield float(due), _compact(row).decode()


def _compact(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode()
