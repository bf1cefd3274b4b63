"""The input: an embedded broker of the benchmark's own, its topics filled once."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from spillway.kafka import broker
from spillway.kafka.client import cluster
from spillway.produce.run import produce
from spillway.produce.summary import ProduceProgress
from spillway_schemas.scenario import Scenario


@dataclass(frozen=True)
class Filled:
    """Topics that hold the scenario, and the broker that serves them."""

    bootstrap: str
    broker_pid: int
    rows: int
    """Of all topics together."""
    value_bytes: int
    """Bytes of the messages, uncompressed."""


@contextlib.contextmanager
def filled(
    folder: Path, wanted: Scenario, *, keep: bool, report: Callable[[ProduceProgress], None]
) -> Iterator[Filled]:
    """Start a broker in `folder` and fill it, unless it was kept with these very rows.

    The broker is stopped at the end; with `keep` its data stay for the next run.
    """
    marker = folder / "filled.json"
    recipe = wanted.model_dump(mode="json")
    if not (marker.is_file() and json.loads(marker.read_text())["scenario"] == recipe):
        broker.stop(folder)
        shutil.rmtree(folder, ignore_errors=True)
    status = broker.start(folder, broker.free_port(), controller_port=broker.free_port())
    try:
        if not marker.is_file():
            sent = produce(wanted, status.bootstrap, speed=None, progress=report)
            found = {"scenario": recipe, "rows": sent.rows, "value_bytes": sent.value_bytes}
            marker.write_text(json.dumps(found))
        about = json.loads(marker.read_text())
        _check(status.bootstrap, wanted, about["rows"])
        assert status.pid is not None
        yield Filled(
            bootstrap=status.bootstrap,
            broker_pid=status.pid,
            rows=about["rows"],
            value_bytes=about["value_bytes"],
        )
    finally:
        broker.stop(folder)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def empty(folder: Path, wanted: Scenario) -> Iterator[Filled]:
    """Start a broker in `folder`, made anew, with the topics of a scenario and no rows."""
    broker.stop(folder)
    shutil.rmtree(folder, ignore_errors=True)
    status = broker.start(folder, broker.free_port(), controller_port=broker.free_port())
    try:
        with cluster(status.bootstrap) as view:
            view.create_topics({wanted.topic(each): wanted.partitions for each in wanted.streams})
        assert status.pid is not None
        yield Filled(bootstrap=status.bootstrap, broker_pid=status.pid, rows=0, value_bytes=0)
    finally:
        broker.stop(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _check(bootstrap: str, wanted: Scenario, rows: int) -> None:
    with cluster(bootstrap) as view:
        ends = view.end_offsets([wanted.topic(stream) for stream in wanted.streams])
    held = sum(sum(each) for each in ends.values())
    if held != rows:
        raise RuntimeError(f"the topics hold {held} rows, not {rows}: remove the broker's folder")
