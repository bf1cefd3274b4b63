"""Every name that is served: type, labels, meaning. `docs/metrics.md` has the same table.

Labels are bounded: topics and joins are the query's, slots those of the assignment, reasons are
`spillway.decode.reasons.KINDS`. Nothing that a message holds becomes a label.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Family(NamedTuple):
    """One metric family."""

    name: str
    kind: Literal["gauge", "counter", "histogram", "info"]
    labels: tuple[str, ...]
    help: str


CATALOGUE: tuple[Family, ...] = (
    # --- the stream
    Family("spillway_up", "gauge", (), "1 once the driver has claimed the journal; 0 before."),
    Family(
        "spillway_stream_info",
        "info",
        ("version", "warehouse", "query", "session"),
        "What runs: its version, the warehouse's id, the query's name and the open session.",
    ),
    Family("spillway_term", "gauge", (), "How many drivers have claimed the journal so far."),
    Family("spillway_epochs_total", "counter", (), "Epochs in the journal."),
    Family(
        "spillway_last_epoch_timestamp_seconds",
        "gauge",
        (),
        "When the last epoch was journaled. Its age is time() minus this.",
    ),
    Family("spillway_last_epoch_duration_seconds", "gauge", (), "How long the last epoch took."),
    Family(
        "spillway_snapshot_timestamp_seconds",
        "gauge",
        (),
        "When the figures served here were put together.",
    ),
    # --- rows and results
    Family("spillway_rows_total", "counter", ("topic",), "Rows read, good or bad."),
    Family(
        "spillway_filtered_rows_total", "counter", ("topic",), "Rows that the query's filter left."
    ),
    Family(
        "spillway_outside_rows_total",
        "counter",
        ("topic",),
        "Rows that happened outside their session's day, of topics whose rows say when they do.",
    ),
    Family(
        "spillway_quarantined_rows_total",
        "counter",
        ("topic", "reason"),
        "Rows in the table quarantine, by the kind of reason.",
    ),
    Family("spillway_results_total", "counter", (), "Results given at run time."),
    Family(
        "spillway_disk_write_seconds",
        "gauge",
        ("disk",),
        "What the newest epoch knows of its disks: tables: all commits of the epoch before; state: "
        "the slowest slot's manifest.",
    ),
    Family(
        "spillway_intake_held",
        "gauge",
        (),
        "1 while no more rows are read because of results.max_per_session, else 0.",
    ),
    Family(
        "spillway_results_limit_ratio",
        "gauge",
        (),
        "The most results that a session which is not sealed has, as a part of "
        "results.max_per_session. Not there without a limit.",
    ),
    Family(
        "spillway_production_delay_seconds",
        "histogram",
        (),
        "Age of a result's newest input row when its slot began to join, of one in 64.",
    ),
    # --- the time of a query with windows
    Family(
        "spillway_watermark_timestamp_seconds",
        "gauge",
        (),
        "The open session's watermark. Not there before every partition has had a row or is idle.",
    ),
    Family(
        "spillway_watermark_lag_seconds",
        "gauge",
        ("topic",),
        "How much the topic's newest row is ahead of the watermark.",
    ),
    Family(
        "spillway_idle_partitions",
        "gauge",
        ("topic",),
        "Partitions that the watermark does not wait for.",
    ),
    Family(
        "spillway_expired_rows_total",
        "counter",
        (),
        "Rows that left memory because no row to come joins with them.",
    ),
    # --- what waits in Kafka
    Family("spillway_kafka_up", "gauge", (), "1 when Kafka answered the last look, else 0."),
    Family(
        "spillway_lag_rows",
        "gauge",
        ("topic",),
        "Offsets between the journal's end and the topic's, at the last look.",
    ),
    Family(
        "spillway_lag_seconds",
        "gauge",
        ("topic",),
        "Age of the oldest row that was not read yet, at the last look; 0 when none waited.",
    ),
    # --- state
    Family(
        "spillway_state_bytes", "gauge", ("slot",), "Live state of a slot after the last epoch."
    ),
    Family("spillway_state_budget_bytes", "gauge", ("slot",), "state.budget_bytes of the slot."),
    Family(
        "spillway_state_folder_bytes",
        "gauge",
        ("slot",),
        "Every file in the slot's folder, those kept from the epoch before included.",
    ),
    Family("spillway_state_rows", "gauge", ("slot",), "Rows in the slot's state."),
    Family("spillway_state_groups", "gauge", ("slot",), "Groups of the slot that hold rows."),
    Family(
        "spillway_spill_threshold_ratio",
        "gauge",
        (),
        "spill.threshold: the part of its budget at which a slot spills.",
    ),
    Family("spillway_slot_busy_ratio", "gauge", ("slot",), "Part of the last minute it worked."),
    Family(
        "spillway_slot_skew_ratio",
        "gauge",
        ("slot",),
        "The largest group's share of the slot's work in the last minute, 0 to 1.",
    ),
    Family(
        "spillway_slot_clock_ahead_seconds",
        "gauge",
        ("slot",),
        "How far the clock of the slot's host is ahead of the driver's at least; negative: behind.",
    ),
    # --- the joins of a tree
    Family("spillway_join_state_bytes", "gauge", ("join",), "Live state of a join's groups."),
    Family("spillway_join_state_rows", "gauge", ("join",), "Rows in a join's state."),
    Family(
        "spillway_join_results_total",
        "counter",
        ("join",),
        "Results that a join gave itself at run time, since this driver began.",
    ),
    Family(
        "spillway_join_generations_total",
        "counter",
        ("join",),
        "How often a group of the join was spilled, the seals' flushes included.",
    ),
    # --- what left memory, moved, or was lost
    Family("spillway_spills_total", "counter", (), "How often a slot has spilled."),
    Family("spillway_spilled_bytes_total", "counter", (), "State that left memory in spills."),
    Family(
        "spillway_flushed_bytes_total",
        "counter",
        (),
        "State that left memory when days were sealed.",
    ),
    Family(
        "spillway_returned_bytes_total",
        "counter",
        (),
        "State of spilled groups that came back to memory.",
    ),
    Family("spillway_relocations_total", "counter", (), "Groups that changed their slot."),
    Family("spillway_relocations_waiting", "gauge", (), "Groups that are to change their slot."),
    Family(
        "spillway_restored_slots_total",
        "counter",
        (),
        "How often a slot's state was lost and read again from Kafka.",
    ),
    Family(
        "spillway_deferred_slots_total",
        "counter",
        (),
        "How often a slot's state was lost and left to cleanup.",
    ),
    # --- days
    Family(
        "spillway_unproved_sessions",
        "gauge",
        (),
        "Sealed sessions that verify has not found complete.",
    ),
    Family(
        "spillway_unproved_session_sealed_timestamp_seconds",
        "gauge",
        (),
        "When the oldest of them was sealed. Not there when there is none.",
    ),
    Family(
        "spillway_incomplete_sessions",
        "gauge",
        (),
        "Sessions in which verify, when it last looked, found results missing or doubled.",
    ),
)

DELAY_BUCKETS_MS: tuple[int, ...] = (
    *(100, 200, 500),
    *(1_000, 2_000, 3_000, 5_000),
    *(10_000, 20_000, 30_000, 60_000),
    *(100_000, 300_000, 600_000, 1_800_000, 3_600_000),
)
"""Upper edges of the delay's buckets. An epoch takes 0.2 s at least, so nothing lies below 0.1 s;
they are close around `stream.trigger_s` (2 s), where a stream that keeps up lies, then about
doubled up to a minute, where people want to be told; what lies beyond is a backlog that is read.
Each is an edge of the journal's histogram too (`DELAY_EDGES_MS`), so counts are exact."""
