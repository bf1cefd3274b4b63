"""Days whose streams are not all JSON, on the real parts.

Avro and Protobuf by a registry that fails, and by a real one; Avro and Protobuf by files; and
values that only a decoder of the user's can read, which a package brings."""

from __future__ import annotations

import io
import json
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.message import DecodeError

from spillway.registry.client import RegistryClient
from tests.apicurio import RELEASE, apicurio, java_of
from tests.formats import avro, framed, installed_decoder, proto, record, serialized
from tests.integration.day import STREAMS, VALUE, Day, accepted, messages
from tests.registry import StandIn

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

SESSION = "2026-01-05"
Value = bytes | None
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
    """A day whose streams are not all JSON."""

    streams: ClassVar[tuple[str, ...]] = STREAMS
    said: ClassVar[Mapping[str, str]]
    """What the query says of a stream where that is more than its `schema`."""
    files: ClassVar[Mapping[str, str]]
    """What lies in the folder `schemas` beside it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        file = self.folder / "query.toml"
        text = file.read_text()
        for stream, said in self.said.items():
            text = text.replace(f'schema = "{stream}"\n', said)
        file.write_text(text)
        (self.folder / "schemas").mkdir()
        for name, written in self.files.items():
            (self.folder / "schemas" / name).write_text(written)

    def as_json(self, stream: str, value: Value) -> Value:
        """A value for the brute force: what the formats' own libraries read, one by one."""
        raise NotImplementedError

    def read_topics(self) -> dict[str, list[tuple[int, int, Value]]]:
        """As JSON."""
        return {
            stream: [
                (partition, offset, self.as_json(stream, value))
                for partition, offset, value in rows
            ]
            for stream, rows in super().read_topics().items()
        }


class RegistryDay(FormatsDay):
    """`stock` is Avro and `volume` Protobuf, by ids; `review` is JSON; `quote` Avro by a file."""

    streams = (*STREAMS, "quote")
    said: ClassVar[Mapping[str, str]] = {
        "stock": 'schema = "stock"\nformat = "avro"\n',
        "volume": 'schema = "volume"\nformat = "protobuf"\n',
        "quote": f'format = "avro"\nwriter = "schemas/quote.avsc"\nfields = {QUOTE_FIELDS}\n',
    }
    files: ClassVar[Mapping[str, str]] = {"quote.avsc": json.dumps(QUOTE)}
    ids: Sequence[int] = ()
    """Of the old and the new schema of `stock`, and of that of `volume`."""

    def fill(self, ids: Sequence[int]) -> None:
        """Send the day's messages, by schemas of these ids."""
        self.ids = ids
        made = messages(3, 3_000, keys=300)
        self.produce(
            [(stream, _written(stream, value, n, ids)) for n, (stream, value) in enumerate(made)]
            + _quotes(keys=300)
        )

    def as_json(self, stream: str, value: Value) -> Value:
        """See FormatsDay."""
        return _json(stream, value, self.ids)


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
        return framed(volume, b"\x00" + _volume_body(found))
    return value


def _volume_body(found: Mapping[str, Any]) -> bytes:
    """A row of `volume` in Protobuf."""
    message = Volume(symbol=found["symbol"], shares=found["shares"])
    message.ts.FromDatetime(datetime.fromisoformat(found["ts"]).replace(tzinfo=None))
    return bytes(message.SerializeToString())


def _volume_json(body: bytes) -> bytes:
    """What Protobuf's library reads. Raises DecodeError."""
    message = Volume.FromString(body)
    ts = message.ts.ToDatetime(tzinfo=UTC).isoformat()
    return json.dumps({"symbol": message.symbol, "shares": message.shares, "ts": ts}).encode()


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
    return _volume_json(value[6:])


NOTES_ITS_PROCESS = """
import os
from pathlib import Path

command = Path("/proc/self/cmdline").read_bytes()
Path(__file__).with_name(f"loaded-by-{os.getpid()}").write_bytes(command)
"""
"""Behind the code of the page's decoder: who loads it."""


class PackageDay(FormatsDay):
    """`stock` is read by the decoder of a package, `volume` is Protobuf by a file, `review` JSON.
    Nobody has a registry."""

    said: ClassVar[Mapping[str, str]] = {
        "stock": 'format = "pipes"\noptions = { separator = ";" }\nfields = { symbol = "string", '
        'ts = "timestamp", price = "decimal(18,4)", size = "int?" }\n',
        "volume": 'schema = "volume"\nformat = "protobuf"\nwriter = "schemas/volume.proto"\n'
        'message = "desk.M"\n',
    }
    files: ClassVar[Mapping[str, str]] = {"volume.proto": f"{VOLUME_TEXT}message Other {{}}\n"}

    def __post_init__(self) -> None:
        super().__post_init__()
        installed_decoder(self.site, NOTES_ITS_PROCESS)

    @property
    def site(self) -> Path:
        """Where the package is."""
        return self.folder / "site"

    def env(self) -> dict[str, str]:
        """With the package in Python's path."""
        found = super().env()
        return {**found, "PYTHONPATH": f"{found['PYTHONPATH']}:{self.site}"}

    def loaded_by(self) -> set[str]:
        """The commands of the processes that have loaded the decoder."""
        return {file.read_bytes().decode() for file in self.site.glob("loaded-by-*")}

    def fill(self) -> None:
        """Send the day's messages, and some that nobody can read."""
        made = messages(5, 3_000, keys=2_500)
        good = [
            (stream, _unframed(stream, value, number))
            for number, (stream, value) in enumerate(made)
        ]
        ts = "2026-01-05T09:00:00Z"
        bad = [
            ("stock", f"S1;{ts};1".encode()),
            ("stock", f"S1;{ts};1;many".encode()),
            ("stock", b"S1;noon;1;7"),
            ("stock", b"\xff"),
            ("volume", _volume_body({"symbol": "S1", "shares": 7, "ts": ts})[:-1]),
            *((stream, value) for stream in STREAMS for value in (None, b"")),
        ]
        self.produce([*good, *bad])

    def as_json(self, stream: str, value: Value) -> Value:
        """See FormatsDay."""
        if stream == "review" or not value:
            return value
        try:
            if stream == "volume":
                return _volume_json(value)
            symbol, ts, price, size = value.decode().split(";")
            found = {"symbol": symbol, "ts": datetime.fromisoformat(ts).isoformat()}
            return json.dumps(found | {"price": float(price), "size": int(size or 0)}).encode()
        except (ValueError, DecodeError):
            return b"not readable"


def _unframed(stream: str, value: bytes, number: int) -> bytes:
    """A message of `messages` in its stream's format of a `PackageDay`; those that are broken stay
    as they are."""
    try:
        found = json.loads(value)
        ts = found["ts"]
    except (ValueError, KeyError, TypeError):
        return value
    if stream == "stock":
        size = number if number % 3 else ""  # it is optional
        return f"{found['symbol']};{ts};{found['price']};{size}".encode()
    return _volume_body(found) if stream == "volume" else value


@pytest.fixture
def make_day(
    tmp_path: Path,
    broker: str,
    topics: Callable[..., dict[str, str]],
    spark_env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., Any]]:
    """Makes a day of a class, with settings."""
    made: list[FormatsDay] = []
    monkeypatch.setitem(VALUE, "quote", "bid")

    def make(kind: type[FormatsDay], **settings: Any) -> FormatsDay:
        names = topics(*kind.streams, partitions=2)
        made.append(kind(tmp_path / "day", broker, names, spark_env, **settings))
        return made[-1]

    yield make
    for day in made:
        day.clean()


def _registry(url: str) -> dict[str, str]:
    """What a day's settings say of a registry."""
    return {"REGISTRY__URL": url, "REGISTRY__WAIT_S": "30"}


def test_a_day_of_three_formats(make_day: Callable[..., Any]) -> None:
    """A schema evolves, the registry is away at first and gone when the day is proved."""
    with StandIn() as registry:
        day: RegistryDay = make_day(RegistryDay, extra=_registry(registry.url))
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
def test_a_day_with_a_real_registry(make_day: Callable[..., Any]) -> None:
    """Schemas are registered as other producers do, as text; it is gone when the day is proved."""
    java = java_of(RELEASE.java)
    assert java is not None
    with apicurio(RELEASE, java) as url:
        day: RegistryDay = make_day(RegistryDay, extra=_registry(url))
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


def test_a_day_of_a_package_s_decoder_and_a_file(make_day: Callable[..., Any]) -> None:
    """With little memory. Whoever reads values finds the decoder by its entry point: the driver,
    Spark's workers, the processes of the proof. Those of a cleanup read none."""
    day: PackageDay = make_day(PackageDay, budget_bytes=96 << 10)
    day.fill()
    first = ["stream", "--session", SESSION, "--available-now"]
    verdict = day.finish(SESSION, first=[first], PROCESSES="always")
    assert (verdict["missing"], verdict["doubled"]) == (0, 0)
    phases = day.check(SESSION)
    assert min(phases["run-time"], phases["cleanup"]) > 100, phases

    for process in ("tests.integration.failpoints", "pyspark.daemon", "multiprocessing.forkserver"):
        assert [each for each in day.loaded_by() if process in each], process

    quarantined = day.quarantined()
    assert Counter((row["topic"], row["partition"], row["offset"]) for row in quarantined) == {
        (day.topics[stream], partition, offset): 1
        for stream, rows in day.read_topics().items()
        for partition, offset, value in rows
        if accepted(stream, value) is None
    }
    reasons = {
        stream: {row["reason"] for row in quarantined if row["topic"] == topic}
        for stream, topic in day.topics.items()
    }
    none, empty = "tombstone: the record has no value", "empty value"
    assert reasons["stock"] == {
        none,
        empty,
        "not pipes: 4 fields are needed, here are 1",
        "not pipes: 4 fields are needed, here are 3",
        "not pipes: invalid literal for int() with base 10: 'many'",
        "not pipes: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        "ts: not a time with an offset such as 2026-01-05T14:30:00Z",
    }
    # No bytes are a message of Protobuf, whose fields are all at rest. How the library's sentence
    # ends, depends on its build.
    sentences = {each.partition(" message")[0] for each in reasons["volume"]}
    assert sentences == {none, "not Protobuf by volume.proto: Error parsing", "ts: missing"}
    assert reasons["review"] > {none, empty}
