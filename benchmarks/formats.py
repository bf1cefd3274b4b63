"""How fast one core decodes the same facts in each format.

    python -m benchmarks.formats [--rows 200000]

Facts are stock trades with a venue and a sequence number that the contract does not know: as JSON,
and as Avro and Protobuf with the ids of their schemas. `each` reads them one by one, as fastavro,
protobuf and pydantic do: so it is with schemas that whole columns do not take (a union of several
types, say), and with a decoder of one's own. `nested` has a list that nobody asks for. Every figure
is the best of a few runs, in rows per second of CPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf import message_factory

from benchmarks.decode import best_s, messages
from spillway.decode import StreamPlan, compile_streams, decode
from spillway.decode.formats import protobuf_schemas
from spillway.worker_processes import keep_freed_memory
from spillway_schemas.query import query_of
from spillway_schemas.tomlfile import parse_toml
from tests.formats import Given, avro_writer, framed, proto, record, serialized, written

MICROS = {"type": "long", "logicalType": "timestamp-micros"}
FIELDS = (
    ("symbol", "string"),
    ("ts", MICROS),
    ("price", "double"),
    ("currency", ["null", "string"]),
    ("venue", "string"),
    ("seq", "long"),
)
TRADE = record(*FIELDS, name="Trade")
NESTED = record(*FIELDS, ("fills", {"type": "array", "items": "long"}), name="Trade")
MESSAGE = proto(
    ("symbol", 1, "string"),
    ("ts", 2, "google.protobuf.Timestamp"),
    ("price", 3, "double"),
    ("currency", 4, "optional string"),
    ("venue", 5, "string"),
    ("seq", 6, "int64"),
    imports=["google/protobuf/timestamp.proto"],
)
QUERY = """
[streams.stock]
schema = "stock"
format = "{format}"
[streams.volume]
schema = "volume"
[join]
inputs = ["stock", "volume"]
on = ["symbol"]
"""


def plan_of(format_: str) -> StreamPlan:
    """The plan of stock trades in a format."""
    text = QUERY.format(format=format_)
    [plan, _] = compile_streams(query_of(parse_toml(text, Path("q.toml"))))
    if format_ == "json":
        return plan
    schemas = (written(1, TRADE), written(2, NESTED), written(3, serialized(MESSAGE), "PROTOBUF"))
    return replace(plan, writers=Given(*schemas))


def facts_of(value: bytes) -> dict[str, Any]:
    """What a message says."""
    found: dict[str, Any] = json.loads(value)
    return found | {"ts": datetime.fromisoformat(found["ts"]), "fills": [1, 2]}


def measure(rows: int) -> list[tuple[str, int, float]]:
    """Of each case its name, the bytes of a message, and rows per CPU second."""
    keep_freed_memory()  # as a worker does
    texts = messages(rows)
    facts = [facts_of(value) for value in texts]
    plain, nested = avro_writer(TRADE), avro_writer(NESTED)
    pool = protobuf_schemas.pool_of([MESSAGE])
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("desk.M"))

    def message(fact: dict[str, Any]) -> bytes:
        found = made(
            **{name: fact[name] for name in ("symbol", "price", "currency", "venue", "seq")}
        )
        since = fact["ts"] - datetime(1970, 1, 1, tzinfo=UTC)
        found.ts.seconds, rest = divmod(since // timedelta(microseconds=1), 1_000_000)
        found.ts.nanos = rest * 1_000
        return framed(3, b"\x00" + found.SerializeToString())

    values = {
        "json": texts,
        "avro": [framed(1, plain(fact)) for fact in facts],
        "avro, nested": [framed(2, nested(fact)) for fact in facts],
        "protobuf": [message(fact) for fact in facts],
    }
    report = []
    for name, some in values.items():
        plan = plan_of(name.partition(",")[0])
        array = pa.array(some, pa.binary())
        size = round(array.nbytes / rows) - 4
        part = array.slice(0, max(1, rows // 10))
        cases: list[tuple[str, int, Callable[[], Any]]] = [
            (name, rows, partial(decode, plan, array)),
            (
                f"{name}, each",
                len(part),
                partial(decode, plan, part, few_rows=rows),
            ),
        ]
        for case, count, run in cases:
            assert len(run().kept) == count
            report.append((case, size, count / best_s(run, 5)))
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    for name, size, rate in measure(parser.parse_args().rows):
        print(f"{name:24} {size:>4} bytes {rate:>12,.0f} rows/s")


if __name__ == "__main__":
    main()
