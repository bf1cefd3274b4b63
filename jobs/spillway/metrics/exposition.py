"""Figures as metric families. Pure: nothing is looked up here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import version

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from spillway.decode.reasons import KINDS
from spillway.metrics.catalogue import CATALOGUE, DELAY_BUCKETS_MS, Family
from spillway.metrics.figures import JournalFigures, ScrapeFigures
from spillway_schemas.journal import DELAY_EDGES_MS

Values = Iterable[tuple[tuple[str, ...], float]]
"""Label values in the family's order, and the value."""


def families(figures: ScrapeFigures) -> Iterator[Metric]:
    """Every family that has a value now, in the catalogue's order."""
    found = dict(_values(figures))
    for family in CATALOGUE:
        if family.kind == "histogram":
            if figures.journal is not None and figures.journal.delay:
                yield _histogram(family, figures.journal.delay)
        elif values := list(found[family.name]):
            yield _family(family, values)


def _family(family: Family, values: Values) -> Metric:
    if family.kind == "info":
        info = InfoMetricFamily(family.name.removesuffix("_info"), family.help)
        for labels, _ in values:
            info.add_metric((), dict(zip(family.labels, labels, strict=True)))
        return info
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = make(family.name, family.help, labels=family.labels)
    for labels, value in values:
        metric.add_metric(labels, value)
    return metric


def _histogram(family: Family, delay: Iterable[int]) -> Metric:
    """Buckets by exact counts; the sum from the middles of the journal's finer buckets."""
    counts = list(delay)
    below, sum_ms, edges = 0, 0.0, (0, *DELAY_EDGES_MS, DELAY_EDGES_MS[-1])
    buckets: list[tuple[str, float]] = []
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        below += count
        sum_ms += count * (low + high) / 2
        if high in DELAY_BUCKETS_MS and high != low:
            buckets.append((repr(high / 1000), below))
    buckets.append(("+Inf", sum(counts)))
    return HistogramMetricFamily(family.name, family.help, buckets, sum_ms / 1000)


def _values(figures: ScrapeFigures) -> Iterator[tuple[str, Values]]:
    yield "spillway_up", _one(int(figures.claimed))
    yield "spillway_snapshot_timestamp_seconds", _one(figures.at_s)
    yield "spillway_spill_threshold_ratio", _one(figures.threshold)
    yield from _of_journal(figures.journal)
    quarantined: Values = ()
    if figures.quarantined is not None and figures.journal is not None:
        # Kinds that have not come yet are 0: an increase from nothing would not be seen.
        every = {(topic, kind): 0 for topic in figures.journal.rows for kind in KINDS}
        quarantined = (every | dict(figures.quarantined)).items()
    yield "spillway_quarantined_rows_total", quarantined
    answers, lag = figures.kafka_answers, figures.lag
    yield "spillway_kafka_up", _one(None if answers is None else int(answers))
    yield "spillway_lag_rows", _labelled({} if lag is None else lag.rows)
    yield "spillway_lag_seconds", _labelled({} if lag is None else lag.seconds)
    joins = figures.joins
    held = () if joins is None else joins.now
    yield "spillway_join_state_bytes", _labelled({each.join: each.bytes for each in held})
    yield "spillway_join_state_rows", _labelled({each.join: each.rows for each in held})
    yield "spillway_join_results_total", _labelled({} if joins is None else joins.given)
    of_days = {
        "spillway_unproved_sessions": "unproved",
        "spillway_unproved_session_sealed_timestamp_seconds": "oldest_sealed_s",
        "spillway_incomplete_sessions": "incomplete",
    }
    for name, what in of_days.items():
        yield name, _one(getattr(figures.days, what, None))


def _of_journal(known: JournalFigures | None) -> Iterator[tuple[str, Values]]:
    plain = {
        "spillway_term": "term",
        "spillway_epochs_total": "epochs",
        "spillway_last_epoch_timestamp_seconds": "last_epoch_s",
        "spillway_last_epoch_duration_seconds": "last_epoch_took_s",
        "spillway_results_total": "results",
        "spillway_spills_total": "spills",
        "spillway_spilled_bytes_total": "spilled_bytes",
        "spillway_flushed_bytes_total": "flushed_bytes",
        "spillway_returned_bytes_total": "returned_bytes",
        "spillway_relocations_total": "relocations",
        "spillway_relocations_waiting": "relocations_waiting",
        "spillway_restored_slots_total": "restored_slots",
        "spillway_deferred_slots_total": "deferred_slots",
    }
    of_slots = {
        "spillway_state_bytes": "state_bytes",
        "spillway_state_budget_bytes": "budget_bytes",
        "spillway_state_folder_bytes": "folder_bytes",
        "spillway_state_rows": "rows",
        "spillway_state_groups": "groups",
        "spillway_slot_busy_ratio": "busy",
        "spillway_slot_skew_ratio": "skew",
    }
    for name, what in plain.items():
        yield name, _one(getattr(known, what, None))
    for name, what in of_slots.items():
        slots = () if known is None else known.slots
        yield name, [((str(slot.slot),), getattr(slot, what)) for slot in slots]
    ahead = {} if known is None else known.clocks_ahead_s
    yield "spillway_slot_clock_ahead_seconds", _labelled(ahead)
    yield "spillway_rows_total", _labelled({} if known is None else known.rows)
    yield "spillway_outside_rows_total", _labelled({} if known is None else known.outside)
    yield "spillway_disk_write_seconds", _labelled({} if known is None else known.write_s)
    yield "spillway_intake_held", _one(None if known is None else int(known.intake_held))
    yield "spillway_results_limit_ratio", _one(None if known is None else known.limit_ratio)
    yield "spillway_filtered_rows_total", _labelled({} if known is None else known.filtered)
    generations = {} if known is None else known.generations
    yield "spillway_join_generations_total", _labelled(generations)
    time = None if known is None else known.event_time
    mark = None if time is None or time.watermark_us is None else time.watermark_us / 1e6
    yield "spillway_watermark_timestamp_seconds", _one(mark)
    yield "spillway_watermark_lag_seconds", _labelled({} if time is None else time.ahead_s)
    idle = {} if known is None or time is None else dict.fromkeys(known.rows, 0) | time.idle_counts
    yield "spillway_idle_partitions", _labelled(idle)
    expired = None if known is None or time is None else known.expired_rows
    yield "spillway_expired_rows_total", _one(expired)
    runs = [] if known is None else [(_version(), known.warehouse, known.query, known.session)]
    yield "spillway_stream_info", [(labels, 1) for labels in runs]


@cache
def _version() -> str:
    return version("spillway")


def _one(value: float | None) -> Values:
    return () if value is None else (((), value),)


def _labelled(values: Mapping[str, float]) -> Values:
    return [((label,), value) for label, value in values.items()]
