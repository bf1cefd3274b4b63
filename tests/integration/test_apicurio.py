"""Formats with a real Schema Registry, Apicurio, by its API that is Confluent's.

What `produce` registers and writes is read again by what the registry says of it; other producers'
schemas, too, as they evolve; and a schema that the registry refuses is said.
"""

from __future__ import annotations

import json
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from kafka import KafkaConsumer, TopicPartition

from spillway.cli import main
from spillway.decode import compile_streams, decode
from spillway.decode.formats.protobuf_schemas import pool_of
from spillway.doctor.schemas import schemas as schema_checks
from spillway.kafka.client import KafkaCluster
from spillway.produce.generate import sources
from spillway.registry import with_schemas
from spillway.registry.client import RegistryClient, RegistryRefuses
from spillway.storage import folder
from spillway_schemas.exits import FAILED
from spillway_schemas.query import Query, query_of
from spillway_schemas.scenario import Scenario, load_scenario
from spillway_schemas.settings import RegistrySettings, load_settings
from spillway_schemas.tomlfile import parse_toml
from tests.apicurio import NEWEST, OLD, RELEASE, Release, apicurio, java_of
from tests.formats import avro, framed, plan, proto, record
from tests.missing import without

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

SCENARIO = """
seed = 4
rows = 300
duration_s = 60
start = 2026-01-05T14:30:00Z
partitions = 2
[keys]
count = 40
[malformed]
not-json = 0.02
tombstone = 0.02
[streams.{stream}]
kind = "stock"
topic = "{topic}"
"""
TRADE = '{ symbol = "string", ts = "timestamp", price = "decimal(18,4)" }'
FIELDS = {
    "compatible": TRADE.replace(" }", ', note = "string?" }'),
    "incompatible": TRADE.replace('symbol = "string"', 'symbol = "int"'),
}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def _releases() -> list[Any]:
    return [
        pytest.param(each, id=each.revision, marks=() if each is RELEASE else pytest.mark.soak)
        for each in (OLD, RELEASE, NEWEST)
    ]


@pytest.fixture(scope="module", params=_releases())
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A registry's, for all tests of this file."""
    release: Release = request.param
    java = java_of(release.java)
    if java is None:
        without(f"Java {release.java}", f"Apicurio {release.revision} needs it, or a later one")
    with apicurio(release, java) as found:
        yield found


class Producing:
    """One topic in one format, and a query of it whose fields may change."""

    def __init__(self, place: Path, bootstrap: str, url: str, format_: str) -> None:
        self.topic = f"trades-{uuid.uuid4().hex[:8]}"
        self.bootstrap, self.url, self.format = bootstrap, url, format_
        self.place = place
        self.registry = RegistrySettings(url=url, wait_s=10.0)
        (place / "scenario.toml").write_text(SCENARIO.format(stream="stock", topic=self.topic))
        self.fields(TRADE)

    @property
    def subject(self) -> str:
        return f"{self.topic}-value"

    @property
    def scenario(self) -> Scenario:
        return load_scenario(str(self.place / "scenario.toml"))

    @property
    def query(self) -> Query:
        file = self.place / "query.toml"
        return query_of(parse_toml(file.read_text(), file))

    def fields(self, text: str) -> None:
        """What the query asks for."""
        (self.place / "query.toml").write_text(
            f'[streams.stock]\ntopic = "{self.topic}"\nformat = "{self.format}"\n'
            f'fields = {text}\n[join]\ninputs = ["stock", "stock as other"]\non = ["symbol"]\n'
        )

    def produce(self) -> int:
        """The command; what it ends with."""
        settings = {
            "kafka.bootstrap_servers": self.bootstrap,
            "registry.url": self.url,
            "registry.wait_s": 5,
            "query": self.place / "query.toml",
            "warehouse.root": self.place / "warehouse",
        }
        given = [f"--set={name}={value}" for name, value in settings.items()]
        with pytest.raises(SystemExit) as ended:
            main([*given, "produce", str(self.place / "scenario.toml")])
        return int(ended.value.code or 0)

    def values(self) -> list[bytes | None]:
        """All that the topic has."""
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, enable_auto_commit=False)
        places = [TopicPartition(self.topic, part) for part in range(self.scenario.partitions)]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        consumer.seek_to_beginning(*places)
        found: list[bytes | None] = []
        until = time.monotonic() + 30
        while any(consumer.position(place) < ends[place] for place in places):
            assert time.monotonic() < until
            for records in consumer.poll(timeout_ms=200).values():
                found += [each.value for each in records]
        consumer.close()
        return found

    def decoded(self) -> tuple[Counter[Any], int]:
        """The rows that the topic has by the query, and how many values are rejected."""
        [each, *_] = with_schemas(compile_streams(self.query), self.registry, None)
        found = decode(each, pa.array(self.values(), pa.binary()))
        return Counter(tuple(row.values()) for row in found.rows.to_pylist()), len(found.rejected)

    def made(self) -> tuple[Counter[Any], int]:
        """The same of what the scenario says, as JSON."""
        [source] = sources(self.scenario)
        values = pa.chunked_array([source.chunk(each.number).values for each in source.plan])
        found = decode(plan(f"fields = {TRADE}"), values.cast(pa.binary()).combine_chunks())
        return Counter(tuple(row.values()) for row in found.rows.to_pylist()), len(found.rejected)


@pytest.fixture(params=["avro", "protobuf"])
def producing(
    request: pytest.FixtureRequest, url: str, broker: str, tmp_path: Path, cluster: KafkaCluster
) -> Iterator[Producing]:
    made = Producing(tmp_path, broker, url, request.param)
    yield made
    if left := set(cluster.existing_topics()) & {made.topic}:
        cluster.delete_topics(left)


def compatibility(url: str, subject: str, level: str) -> None:
    """Set a subject's."""
    request = urllib.request.Request(
        f"{url}/config/{subject}",
        json.dumps({"compatibility": level}).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        method="PUT",
    )
    urllib.request.urlopen(request, timeout=10).close()


# ------------------------------------------------------------------------------------- produce


def test_what_is_produced_is_read(producing: Producing) -> None:
    assert producing.produce() == 0
    rows, rejected = producing.decoded()
    assert (rows, rejected) == producing.made()
    assert rejected > 0
    settings, _ = load_settings(
        None,
        {"registry.url": producing.url, "warehouse.root": str(producing.place / "warehouse")},
        environ={},
    )
    checks = schema_checks(settings, producing.query)
    assert [each.status for each in checks] == ["ok", "ok"], checks
    ids = {value[:5] for value in producing.values() if value and value[:1] == b"\x00"}
    assert producing.produce() == 0  # it finds its schema there
    assert {value[:5] for value in producing.values() if value and value[:1] == b"\x00"} == ids


def test_a_compatible_schema_is_the_next_version(producing: Producing) -> None:
    assert producing.produce() == 0
    compatibility(producing.url, producing.subject, "BACKWARD")
    producing.fields(FIELDS["compatible"])
    assert producing.produce() == 0
    rows, rejected = producing.decoded()
    made, broken = producing.made()
    assert rows == Counter({(*row, None): 2 * count for row, count in made.items()})
    assert rejected == 2 * broken
    producing.fields(TRADE)
    assert producing.decoded()[0] == Counter({row: 2 * count for row, count in made.items()})


def test_an_incompatible_schema_is_refused_and_said(
    producing: Producing, capsys: pytest.CaptureFixture[str]
) -> None:
    assert producing.produce() == 0
    before = producing.decoded()
    compatibility(producing.url, producing.subject, "BACKWARD")
    producing.fields(FIELDS["incompatible"])
    capsys.readouterr()
    assert producing.produce() == FAILED
    said = capsys.readouterr()
    assert said.out == ""
    told = " ".join(said.err.split())
    assert f"/subjects/{producing.subject}/versions: HTTP 409, " in told
    assert f"The new schema of {producing.subject} is not compatible with its earlier" in told
    assert "Traceback" not in told
    assert "details" not in told
    producing.fields(TRADE)
    assert producing.decoded() == before == producing.made()


def test_a_schema_that_is_none_is_refused(url: str) -> None:
    client = RegistryClient(url, {}, wait_s=5.0)
    for kind, text in (("AVRO", '{"type": "nothing"}'), ("PROTOBUF", "message {")):
        with pytest.raises(RegistryRefuses, match="HTTP 422, "):
            client.register(f"none-{uuid.uuid4().hex[:8]}", kind, text)


# ----------------------------------------------------------------------------- other producers

V1 = record(("symbol", "string"), ("ts", MICROS), ("size", "int"), name="Trade")
V2 = record(
    ("venue", "string", ""), ("symbol", "string"), ("ts", MICROS), ("size", "long"), name="Trade"
)
P1 = """syntax = "proto3";
package desk;
import "google/protobuf/timestamp.proto";
message M {
  string symbol = 1;
  google.protobuf.Timestamp ts = 2;
  int64 size = 3;
}
"""
P2 = P1.replace("size = 3;", "size = 3;\n  optional string venue = 4;")
PLAIN = 'fields = { symbol = "string", ts = "timestamp", size = "int", venue = "string?" }'


def read(url: str, format_: str, values: Sequence[bytes], place: Path) -> list[Any]:
    """What becomes of values: rows, or reasons."""
    settings = RegistrySettings(url=url, wait_s=5.0)
    [each] = with_schemas([plan(f'format = "{format_}"\n{PLAIN}')], settings, folder(str(place)))
    found = decode(each, pa.array(values, pa.binary()))
    rows = [tuple(row.values()) for row in found.rows.to_pylist()]
    said: dict[int, Any] = dict(zip(found.kept.tolist(), rows, strict=True))
    said |= dict(zip(found.rejected.tolist(), found.reasons, strict=True))
    return [said[number] for number in range(len(values))]


def test_avro_is_read_by_the_version_that_wrote_it(url: str, tmp_path: Path) -> None:
    client, subject = RegistryClient(url, {}, wait_s=5.0), f"s-{uuid.uuid4().hex[:8]}-value"
    old = client.register(subject, "AVRO", json.dumps(V1))
    compatibility(url, subject, "BACKWARD")
    new = client.register(subject, "AVRO", json.dumps(V2))
    assert old != new == client.latest(subject).id
    row = {"symbol": "A", "ts": NOON, "size": 7, "venue": "X"}
    values = [framed(old, avro(V1, row)), framed(new, avro(V2, row)), framed(9_999, b"\x02A")]
    wanted = [
        ("A", NOON, 7, None), ("A", NOON, 7, "X"),
        "schema 9999: the registry has no such schema",
    ]  # fmt: skip
    assert read(url, "avro", values, tmp_path) == wanted
    # The warehouse knows them now, and asks nobody.
    assert read("http://127.0.0.1:1", "avro", values[:2], tmp_path) == wanted[:2]


def test_protobuf_is_read_by_the_version_that_wrote_it(url: str, tmp_path: Path) -> None:
    """Registered as text, as Java producers do."""
    client, subject = RegistryClient(url, {}, wait_s=5.0), f"s-{uuid.uuid4().hex[:8]}-value"
    old = client.register(subject, "PROTOBUF", P1)
    compatibility(url, subject, "BACKWARD")
    new = client.register(subject, "PROTOBUF", P2)
    assert old != new == client.latest(subject).id
    file = proto(
        ("symbol", 1, "string"),
        ("ts", 2, "google.protobuf.Timestamp"),
        ("size", 3, "int64"),
        ("venue", 4, "optional string"),
        imports=["google/protobuf/timestamp.proto"],
    )
    wrote = message_factory.GetMessageClass(pool_of([file]).FindMessageTypeByName("desk.M"))
    message = wrote(symbol="A", size=7)
    message.ts.FromDatetime(NOON.replace(tzinfo=None))
    first = framed(old, b"\x00" + message.SerializeToString())
    message.venue = "X"
    second = framed(new, b"\x00" + message.SerializeToString())
    wanted = [("A", NOON, 7, None), ("A", NOON, 7, "X")]
    assert read(url, "protobuf", [first, second], tmp_path) == wanted
    assert read("http://127.0.0.1:1", "protobuf", [first, second], tmp_path) == wanted


def test_schemas_refer_to_others(url: str) -> None:
    tag = uuid.uuid4().hex[:8]
    client = RegistryClient(url, {}, wait_s=5.0)
    money = 'syntax = "proto3";\npackage desk;\nmessage Money { int64 cents = 1; }\n'
    top = (
        'syntax = "proto3";\npackage desk;\nimport "money.proto";\nimport '
        '"confluent/type/decimal.proto";\nmessage Bid { Money at = 1; '
        "confluent.type.Decimal exact = 2; string symbol = 3; }\n"
    )
    client.register(f"money-{tag}", "PROTOBUF", money)
    refers = [{"name": "money.proto", "subject": f"money-{tag}", "version": 1}]
    body = {"schemaType": "PROTOBUF", "schema": top, "references": refers}
    number = client.ask(f"/subjects/bid-{tag}/versions", body)["id"]
    fields = 'fields = { symbol = "string", at = "json", exact = "decimal(9,2)" }'
    [each] = with_schemas(
        [plan(f'format = "protobuf"\n{fields}')], RegistrySettings(url=url, wait_s=5.0), None
    )
    bid = bytes.fromhex("0a02080712060a02012c18021a0141")
    found = decode(each, pa.array([framed(number, b"\x00" + bid)], pa.binary()))
    assert found.reasons == []
    [row] = found.rows.to_pylist()
    assert (json.loads(row["at"]), str(row["exact"])) == ({"cents": "7"}, "3.00")
