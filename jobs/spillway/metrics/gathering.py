"""Puts the figures together, beside the stream and not in its way.

Model: the stream's threads call `on_start` once and `on_epoch` for each journaled entry; both only
leave something behind. One thread picks it up every `TICK_S`: it adds entries up, looks at Kafka
and the tables every `REFRESH_S`, and replaces the figures. Scrapes read the figures and nothing
else.

The thread's tally begins with the journal as it was at the claim, read through handles of its own,
and goes on with the entries that are handed over. The driver is the only one that appends, so what
it hands over is all there is.

Failure paths:
* *Kafka does not answer*: `kafka_answers` is False and there is no lag, until it does.
* *A table cannot be read* (files of `quarantine` go when they are compacted): its figures are left
  out until they can be.
* *The thread fails otherwise*: Python prints why, entries are no longer kept, and the figures'
  time stands still, which an alert tells. The stream goes on.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace

import pyarrow.parquet as pq
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from spillway.decode.reasons import kind_of
from spillway.kafka.backlog import BacklogReader
from spillway.kafka.client import KafkaUnavailable
from spillway.metrics.exposition import families
from spillway.metrics.figures import (
    Days,
    JoinTotals,
    Lag,
    ScrapeFigures,
    days_of,
    journal_figures,
    lag_of,
)
from spillway.protocol.state import JournalState
from spillway.readmodel import cache
from spillway.readmodel.joins import look_at_joins
from spillway.readmodel.model import ReadModel
from spillway.tables import Warehouse, WarehouseError, opened
from spillway_schemas.journal import Epoch, entry_texts
from spillway_schemas.settings import Settings

TICK_S = 1.0
REFRESH_S = 10.0
"""Kafka and the tables are looked at so often: alerts wait for minutes, and a look fetches a batch
from each partition in which rows wait."""
END_S = 10.0
"""Longer than a look at a Kafka that hangs."""


class Gatherer(Collector):
    """Takes what the stream hands over, gives what a scrape shows."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._entries: deque[Epoch] = deque()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._figures = ScrapeFigures()

    # ------------------------------------------------------------------ the stream's threads

    def on_start(self, state: JournalState) -> None:  # noqa: ARG002 - the journal is read anew
        """The driver has claimed the journal."""
        self._thread.start()

    def on_epoch(self, entry: Epoch) -> None:
        """An entry is in the journal."""
        if self._thread.is_alive():
            self._entries.append(entry)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(END_S)

    # ------------------------------------------------------------------ a scrape's thread

    def collect(self) -> Iterable[Metric]:
        """The families of the present figures."""
        return families(self._figures)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        self._publish(ScrapeFigures(claimed=True))
        kafka = self._settings.kafka
        backlog = BacklogReader(kafka.bootstrap_servers, kafka.options)
        try:
            self._gather(backlog)
        finally:
            backlog.close()

    def _gather(self, backlog: BacklogReader) -> None:
        warehouse = opened(self._settings.warehouse)
        model = _known(warehouse)
        quarantined = Quarantined(warehouse)
        trigger_s, name = self._settings.stream.trigger_s, self._settings.shown_name
        known = ScrapeFigures(
            claimed=True,
            threshold=self._settings.spill.threshold,
            journal=journal_figures(model, trigger_s, name),
        )
        look_at = 0.0
        while True:
            if self._add_up(model):
                known = replace(known, journal=journal_figures(model, trigger_s, name))
            now = time.monotonic()
            if now >= look_at:
                look_at = now + REFRESH_S
                lag = _lag(model, backlog)
                known = replace(
                    known,
                    lag=lag,
                    kafka_answers=lag is not None,
                    quarantined=quarantined.rows(),
                    days=_days(warehouse, model),
                    joins=_joins(warehouse, model, known.joins),
                )
            self._publish(replace(known, at_s=time.time()))
            if self._stop.wait(TICK_S):
                return

    def _add_up(self, model: ReadModel) -> bool:
        """Add what was handed over; whether there was anything."""
        before = model.state.n
        while self._entries:
            entry = self._entries.popleft()
            if entry.n > model.state.n:  # else it was in the journal when that was read
                model.add(entry_texts(entry)[0], entry)
        return model.state.n > before

    def _publish(self, figures: ScrapeFigures) -> None:
        self._figures = figures  # one assignment: a scrape sees the old one or the new one


def _lag(model: ReadModel, backlog: BacklogReader) -> Lag | None:
    try:
        found = backlog.look({topic: model.state.end.get(topic, []) for topic in model.partitions})
    except KafkaUnavailable:
        return None
    return lag_of(model, found, time.time_ns() // 1_000_000)


def _known(warehouse: Warehouse) -> ReadModel:
    """The journal added up, quickly when `spillway status` has remembered most of it."""
    place = warehouse.place.path()
    memory = cache.load(place)
    model = cache.caught_up(warehouse, memory)
    cache.save(memory, place)
    return model


def _days(warehouse: Warehouse, model: ReadModel) -> Days | None:
    try:
        return days_of(model, warehouse.sessions.read())
    except (WarehouseError, OSError):
        return None


def _joins(warehouse: Warehouse, model: ReadModel, before: JoinTotals | None) -> JoinTotals | None:
    """The joins of a tree; as before while statistics cannot be read."""
    try:
        found = look_at_joins(warehouse, model)
    except (WarehouseError, OSError):
        return before
    return JoinTotals.of(before, found) if found else None


class Quarantined:
    """Rows of `quarantine` by topic and kind of reason. A file never changes: each is read once."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = warehouse.table("quarantine")
        self._files: dict[str, Counter[tuple[str, str]]] = {}

    def rows(self) -> Counter[tuple[str, str]] | None:
        """The whole table's rows now; None when it cannot be read."""
        try:
            self._table.refresh()
            paths = [file.path for file in self._table.files()]
            known = self._files
            self._files = {p: known[p] if p in known else self._count(p) for p in paths}
        except (WarehouseError, OSError):
            return None
        total: Counter[tuple[str, str]] = Counter()
        for counts in self._files.values():
            total.update(counts)
        return total

    def _count(self, path: str) -> Counter[tuple[str, str]]:
        with self._table.place.open(path) as source:
            table = pq.ParquetFile(source).read(columns=["topic", "reason"], use_threads=False)
        counts: Counter[tuple[str, str]] = Counter()
        each = table.group_by(["topic", "reason"], use_threads=False).aggregate([([], "count_all")])
        for row in each.to_pylist():
            counts[row["topic"], kind_of(row["reason"])] += row["count_all"]
        return counts
