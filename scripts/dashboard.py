"""Writes docker/grafana/spillway.json, a dashboard of all that the stream serves: `python -m
scripts.dashboard`.

A test compares the file with what this makes, and each query with the catalogue of metrics.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

FILE = Path(__file__).resolve().parent.parent / "docker" / "grafana" / "spillway.json"

WIDTH = 24
"""Of Grafana's grid."""
HEIGHT = 8
OF_STREAM = '{job="$job",instance="$instance"}'
SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True)
class Panel:
    """One picture, or one number."""

    title: str
    description: str
    queries: Sequence[tuple[str, str]]
    """Expressions, `@` for the labels of the stream, each with its legend."""
    unit: str = "short"
    kind: Literal["timeseries", "stat"] = "timeseries"
    width: int = 8


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Is all well?",
        (
            Panel(
                "Stream",
                "1 once the driver has claimed the journal.",
                [("spillway_up@", "stream"), ("spillway_kafka_up@", "Kafka answers")],
                kind="stat",
                width=4,
            ),
            Panel(
                "Age of the last epoch",
                "It grows while nothing comes in, too: look at the rows that wait.",
                [("time() - spillway_last_epoch_timestamp_seconds@", "age")],
                "s",
                "stat",
                4,
            ),
            Panel(
                "Rows that wait in Kafka",
                "Between the journal's end and the topics'.",
                [("sum(spillway_lag_rows@)", "rows")],
                "short",
                "stat",
                4,
            ),
            Panel(
                "Memory, of the fullest slot",
                "Live state against the slot's budget. A slot spills from spill.threshold on.",
                [
                    ("max(spillway_state_bytes@ / spillway_state_budget_bytes@)", "in use"),
                    ("spillway_spill_threshold_ratio@", "spills from"),
                ],
                "percentunit",
                "stat",
                4,
            ),
            Panel(
                "Days that are not proved",
                "Sealed and not yet verified, and verified with results missing or doubled.",
                [
                    ("spillway_unproved_sessions@", "to prove"),
                    ("spillway_incomplete_sessions@", "not complete"),
                ],
                "short",
                "stat",
                4,
            ),
            Panel(
                "Oldest day that is not proved",
                "How long ago it was sealed.",
                [("time() - spillway_unproved_session_sealed_timestamp_seconds@", "sealed ago")],
                "s",
                "stat",
                4,
            ),
        ),
    ),
    (
        "Rows and results",
        (
            Panel(
                "Rows read",
                "Good or bad, by topic.",
                [("rate(spillway_rows_total@[$__rate_interval])", "{{topic}}")],
                "rowsps",
            ),
            Panel(
                "Results at run time",
                "What is not given now is given by cleanup.",
                [("rate(spillway_results_total@[$__rate_interval])", "results")],
                "rowsps",
            ),
            Panel(
                "Production delay",
                "Age of a result's newest row when its slot began to join.",
                [
                    (
                        f"histogram_quantile({part}, sum by (le) "
                        "(rate(spillway_production_delay_seconds_bucket@[$__rate_interval])))",
                        f"p{round(part * 100)}",
                    )
                    for part in (0.5, 0.99)
                ],
                "s",
            ),
            Panel(
                "Rows that wait, by topic",
                "At the last look.",
                [("spillway_lag_rows@", "{{topic}}")],
            ),
            Panel(
                "Age of the oldest row that waits",
                "0 when none waits.",
                [("spillway_lag_seconds@", "{{topic}}")],
                "s",
            ),
            Panel(
                "Rows refused or left out",
                "In quarantine, by the kind of reason; and what the query's filter left out.",
                [
                    (
                        "rate(spillway_quarantined_rows_total@[$__rate_interval])",
                        "{{topic}}: {{reason}}",
                    ),
                    (
                        "rate(spillway_filtered_rows_total@[$__rate_interval])",
                        "{{topic}}: filtered",
                    ),
                ],
                "rowsps",
            ),
            Panel(
                "Rows outside the day",
                "They happened before the close of the day before, or after their own.",
                [("rate(spillway_outside_rows_total@[$__rate_interval])", "{{topic}}")],
                "rowsps",
            ),
            Panel(
                "What disks take",
                "All commits of an epoch to the tables; the slowest slot's manifest.",
                [("spillway_disk_write_seconds@", "{{disk}}")],
                "s",
            ),
            Panel(
                "Results against their limit",
                "The greatest session's part of results.max_per_session; at 1 no row is read.",
                [
                    ("spillway_results_limit_ratio@", "results"),
                    ("spillway_intake_held@", "no row is read"),
                ],
                "percentunit",
            ),
        ),
    ),
    (
        "Memory and spilling",
        (
            Panel(
                "State of each slot",
                "Live rows, and from where on a slot of the smallest budget spills.",
                [
                    ("spillway_state_bytes@", "slot {{slot}}"),
                    (
                        "min(spillway_state_budget_bytes@)"
                        " * scalar(spillway_spill_threshold_ratio@)",
                        "spills from",
                    ),
                ],
                "bytes",
            ),
            Panel(
                "Folder of each slot",
                "Every file, spilled rows that are still in them included; never above the budget.",
                [
                    ("spillway_state_folder_bytes@", "slot {{slot}}"),
                    ("spillway_state_budget_bytes@", "budget of slot {{slot}}"),
                ],
                "bytes",
            ),
            Panel(
                "Spilled, flushed, brought back",
                "Bytes a second that left memory, and that came back.",
                [
                    ("rate(spillway_spilled_bytes_total@[$__rate_interval])", "spilled"),
                    ("rate(spillway_flushed_bytes_total@[$__rate_interval])", "flushed at a seal"),
                    ("rate(spillway_returned_bytes_total@[$__rate_interval])", "brought back"),
                ],
                "Bps",
            ),
            Panel(
                "Spills",
                "How often a slot has spilled, an hour.",
                [("3600 * rate(spillway_spills_total@[$__rate_interval])", "spills")],
            ),
            Panel("Rows in state", "By slot.", [("spillway_state_rows@", "slot {{slot}}")]),
            Panel(
                "Groups in state",
                "Groups of the slot that hold rows.",
                [("spillway_state_groups@", "slot {{slot}}")],
            ),
        ),
    ),
    (
        "Slots and epochs",
        (
            Panel(
                "How busy each slot is",
                "Part of the last minute.",
                [("spillway_slot_busy_ratio@", "slot {{slot}}")],
                "percentunit",
            ),
            Panel(
                "Largest group's share of a slot's work",
                "A slot of one group cannot be evened out by moves: split it.",
                [("spillway_slot_skew_ratio@", "slot {{slot}}")],
                "percentunit",
            ),
            Panel(
                "Clocks of the slots' hosts",
                "How far ahead of the driver's; 0 as long as none differs by more than an epoch.",
                [("spillway_slot_clock_ahead_seconds@", "slot {{slot}}")],
                "s",
            ),
            Panel(
                "Duration of epochs",
                "Of the last one.",
                [("spillway_last_epoch_duration_seconds@", "seconds")],
                "s",
            ),
            Panel(
                "Epochs",
                "A minute.",
                [("60 * rate(spillway_epochs_total@[$__rate_interval])", "epochs")],
            ),
            Panel(
                "Moves of groups",
                "An hour, and how many wait.",
                [
                    ("3600 * rate(spillway_relocations_total@[$__rate_interval])", "moved"),
                    ("spillway_relocations_waiting@", "waiting"),
                ],
            ),
            Panel(
                "Lost state",
                "Slots that were read again from Kafka, or left to cleanup, and drivers.",
                [
                    ("increase(spillway_restored_slots_total@[$__range])", "restored"),
                    ("increase(spillway_deferred_slots_total@[$__range])", "left to cleanup"),
                    ("spillway_term@", "drivers so far"),
                ],
            ),
        ),
    ),
    (
        "Windows and trees (empty for other queries)",
        (
            Panel(
                "Watermark behind the clock",
                "How far the time of the query is behind this moment.",
                [("time() - spillway_watermark_timestamp_seconds@", "behind")],
                "s",
                width=6,
            ),
            Panel(
                "Newest row ahead of the watermark",
                "By topic; and partitions that it does not wait for.",
                [
                    ("spillway_watermark_lag_seconds@", "{{topic}}, seconds"),
                    ("spillway_idle_partitions@", "{{topic}}, idle partitions"),
                ],
                width=6,
            ),
            Panel(
                "Rows that expired",
                "They left memory because no row to come joins with them.",
                [("rate(spillway_expired_rows_total@[$__rate_interval])", "rows")],
                "rowsps",
                width=6,
            ),
            Panel(
                "State of each join",
                "Of a tree.",
                [("spillway_join_state_bytes@", "{{join}}")],
                "bytes",
                width=6,
            ),
            Panel(
                "Rows in the state of each join",
                "Of a tree.",
                [("spillway_join_state_rows@", "{{join}}")],
            ),
            Panel(
                "Results of each join",
                "At run time.",
                [("rate(spillway_join_results_total@[$__rate_interval])", "{{join}}")],
                "rowsps",
            ),
            Panel(
                "Generations of each join",
                "How often a group was spilled, an hour.",
                [("3600 * rate(spillway_join_generations_total@[$__rate_interval])", "{{join}}")],
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y},
                "panels": [],
            }
        )
        y, x = y + 1, 0
        for panel in row:
            height = HEIGHT // 2 if panel.kind == "stat" else HEIGHT
            if x + panel.width > WIDTH:
                x, y = 0, y + height
            place = {"h": height, "w": panel.width, "x": x, "y": y}
            panels.append(_panel(panel, len(panels) + 1, place))
            x += panel.width
        y += height
    return {
        "uid": "spillway",
        "title": "spillway",
        "description": "A stream join that outgrows its memory: what it reads, gives and spills.",
        "tags": ["spillway"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "panels": panels,
    }


def _panel(panel: Panel, id_: int, place: dict[str, int]) -> dict[str, Any]:
    custom = {"fillOpacity": 8, "showPoints": "never"}
    options: dict[str, Any] = {"legend": {"displayMode": "list", "placement": "bottom"}}
    if panel.kind == "stat":
        custom = {}
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "value_and_name"}
    return {
        "id": id_,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": custom},
            "overrides": [],
        },
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + n),
                "datasource": SOURCE,
                "expr": expression.replace("@", OF_STREAM),
                "legendFormat": legend,
            }
            for n, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _variables() -> list[dict[str, Any]]:
    source = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    asked = {"job": "label_values(spillway_up, job)"}
    asked["instance"] = 'label_values(spillway_up{job="$job"}, instance)'
    return [
        source,
        *(
            {
                "name": name,
                "type": "query",
                "datasource": SOURCE,
                "query": {"query": query, "refId": name},
                "refresh": 2,
            }
            for name, query in asked.items()
        ),
    ]


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
