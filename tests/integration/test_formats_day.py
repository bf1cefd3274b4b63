"""A day whose streams are Avro, Protobuf and JSON, on the real parts, with a registry that fails,
and with a real one.

One of the streams is Avro by a file, without a registry."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from spillway.registry.client import RegistryClient
from tests.apicurio import RELEASE, apicurio, java_of
from tests.formats import avro, framed, proto, record, serialized
from tests.integration.day import STREAMS, VALUE, Day, messages
from tests.registry import StandIn

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

SESSION = "2026-01-05"
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
OLD = record(("symbol", "string"), ("ts", MICROS), ("price", "float"), name="Stock")
NEW = record(
    ("venue", "string", ""), ("symbol", "string"), ("ts", MICROS), ("price", "double"), name="Stock"
)
QUOTE = record(("symbol", "string"), ("ts", MICROS), ("bid", "double"), name="Quote")
QUOTE_FIELDS = '{ symbol = "string", ts = "timestamp", bid = "double" }'
VOLUME = proto(
    ("shares", 1, "int64"),
    ("symbol", 2, "string"),
    ("ts", 3, "google.protobuf.Timestamp"),
    imports=["google/protobuf/timestamp.proto"],
)


def _volume() -> Any:
    pool = descriptor_pool.DescriptorPool()
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    pool.Add(stamp)
    pool.Add(VOLUME)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("desk.M"))


Volume = _volume()


VOLUME_TEXT = """syntax = "proto3";
package desk;
import "google/protobuf/timestamp.proto";
message M {
  int64 shares = 1;
  string symbol = 2;
  google.protobuf.Timestamp ts = 3;
}
"""


class FormatsDay(Day):
    """`stock` is Avro and `volume` Protobuf, by ids; `review` is JSON; `quote` Avro by a file."""

    ids: Sequence[int] = ()
    """Of the old and the new schema of `stock`, and of that of `volume`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        file = self.folder / "query.toml"
        text = file.read_text()
        for stream, format_ in (("stock", "avro"), ("volume", "protobuf")):
            header = f"[streams.{stream}]\n"
            text = text.replace(header, f'{header}format = "{format_}"\n')
        by_file = f'format = "avro"\nwriter = "schemas/quote.avsc"\nfields = {QUOTE_FIELDS}\n'
        text = text.replace('schema = "quote"\n', by_file)
        file.write_text(text)
        (self.folder / "schemas").mkdir()
        (self.folder / "schemas" / "quote.avsc").write_text(json.dumps(QUOTE))

    def fill(self, ids: Sequence[int]) -> None:
        """Send the day's messages, by schemas of these ids."""
        self.ids = ids
        made = messages(3, 3_000, keys=300)
        self.produce(
            [(stream, _written(stream, value, n, ids)) for n, (stream, value) in enumerate(made)]
            + _quotes(keys=300)
        )

    def read_topics(self) -> dict[str, list[tuple[int, int, bytes | None]]]:
        """As JSON, for the brute force: what the libraries read, one by one."""
        return {
            stream: [
                (partition, offset, _json(stream, value, self.ids))
                for partition, offset, value in rows
            ]
            for stream, rows in super().read_topics().items()
        }


def _written(stream: str, value: bytes, number: int, ids: Sequence[int]) -> bytes:
    """A message of `messages` in its stream's format; those that are broken stay as they are."""
    try:
        found = json.loads(value)
        when = datetime.fromisoformat(found["ts"])
    except (ValueError, KeyError, TypeError):
        return value
    old, new, volume = ids
    if stream == "stock":
        by = number % 2
        body = avro((OLD, NEW)[by], found | {"ts": when, "venue": "X"})
        return framed((old, new)[by] if number % 50 else 999, body)  # 999: nobody knows it
    if stream == "volume":
        message = Volume(symbol=found["symbol"], shares=found["shares"])
        message.ts.FromDatetime(when.replace(tzinfo=None))
        return framed(volume, b"\x00" + message.SerializeToString())
    return value


def _quotes(keys: int) -> list[tuple[str, bytes | None]]:
    """One of each second key, and some that nobody can read."""
    made: list[tuple[str, bytes | None]] = [("quote", b""), ("quote", b"not Avro")]
    when = datetime(2026, 1, 5, 9, tzinfo=UTC)
    for n in range(0, keys, 2):
        made.append(("quote", avro(QUOTE, {"symbol": f"S{n}", "ts": when, "bid": n + 0.5})))
    return [*made, ("quote", made[-1][1][:-1])]


def _json(stream: str, value: bytes | None, ids: Sequence[int]) -> bytes | None:
    if stream == "quote":
        try:
            found = fastavro.schemaless_reader(
                io.BytesIO(value or b""), fastavro.parse_schema(QUOTE)
            )
        except (EOFError, ValueError):
            return b"not readable"
        return json.dumps(found | {"ts": found["ts"].isoformat()}).encode()
    if stream == "review" or not value or value[:1] != b"\x00":
        return value if stream == "review" else b"not readable"
    number = struct.unpack(">I", value[1:5])[0]
    if number == 999:
        return b"not readable"
    if stream == "stock":
        schema = fastavro.parse_schema((OLD, NEW)[ids.index(number)])
        found = fastavro.schemaless_reader(io.BytesIO(value[5:]), schema)
        return json.dumps(found | {"ts": found["ts"].isoformat()}).encode()
    message = Volume.FromString(value[6:])
    ts = message.ts.ToDatetime(tzinfo=UTC).isoformat()
    return json.dumps({"symbol": message.symbol, "shares": message.shares, "ts": ts}).encode()


@pytest.fixture
def make_day(
    tmp_path: Path,
    broker: str,
    topics: Callable[..., dict[str, str]],
    spark_env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[str], FormatsDay]]:
    made: list[FormatsDay] = []
    monkeypatch.setitem(VALUE, "quote", "bid")

    def make(url: str) -> FormatsDay:
        names = topics(*STREAMS, "quote", partitions=2)
        extra = {"REGISTRY__URL": url, "REGISTRY__WAIT_S": "30"}
        made.append(FormatsDay(tmp_path / "day", broker, names, spark_env, extra=extra))
        return made[-1]

    yield make
    for day in made:
        day.clean()


def test_a_day_of_three_formats(make_day: Callable[[str], FormatsDay]) -> None:
    """A schema evolves, the registry is away at first and gone when the day is proved."""
    with StandIn() as registry:
        day = make_day(registry.url)
        ids = [
            registry.register(f"{day.topics['stock']}-value", json.dumps(OLD)),
            registry.register(f"{day.topics['stock']}-value", json.dumps(NEW)),
            registry.register(f"{day.topics['volume']}-value", serialized(VOLUME), "PROTOBUF"),
        ]
        day.fill(ids)
        registry.faults = [503] * 6
        day.ok("stream", "--session", SESSION, "--available-now")
        # Each id once, and the unknown one when messages of it came: whatever workers there were.
        asked = {path: n for path, n in registry.asked.items() if path.startswith("/schemas/ids/")}
        assert asked.keys() >= {f"/schemas/ids/{n}" for n in (*ids, 999)}
        registry.away = True
        day.finish(SESSION)
    phases = day.check(SESSION)
    assert sum(phases.values()) > 1_000
    reasons = {each["reason"] for each in day.quarantined()}
    assert "schema 999: the registry has no such schema" in reasons
    assert not [each for each in reasons if "does not answer" in each]
    assert [each for each in reasons if each.startswith("not Avro by quote.avsc: ")]
    kept = sorted(path.name for path in (day.folder / "warehouse" / "schemas").iterdir())
    assert {"1-0.json", "2-0.json", "3-0.json", "999-0.json"} <= set(kept)


@pytest.mark.soak  # in `make test` the day above has a stand-in, and `test_apicurio.py` no day
def test_a_day_with_a_real_registry(make_day: Callable[[str], FormatsDay]) -> None:
    """Schemas are registered as other producers do, as text; it is gone when the day is proved."""
    java = java_of(RELEASE.java)
    assert java is not None
    with apicurio(RELEASE, java) as url:
        day = make_day(url)
        client = RegistryClient(url, {}, wait_s=5.0)
        stock, volume = (f"{day.topics[stream]}-value" for stream in ("stock", "volume"))
        day.fill(
            [
                client.register(stock, "AVRO", json.dumps(OLD)),
                client.register(stock, "AVRO", json.dumps(NEW)),
                client.register(volume, "PROTOBUF", VOLUME_TEXT),
            ]
        )
        day.ok("stream", "--session", SESSION, "--available-now")
    day.finish(SESSION)
    phases = day.check(SESSION)
    assert sum(phases.values()) > 1_000
    reasons = {each["reason"] for each in day.quarantined()}
    assert "schema 999: the registry has no such schema" in reasons
    assert not [each for each in reasons if "cannot be read" in each]
