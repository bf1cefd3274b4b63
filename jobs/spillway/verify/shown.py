"""A verdict for people: counts, then what is wrong, with coordinates."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from spillway.report.words import count_text


def verdict_table(report: dict[str, Any]) -> Table:
    """The report for people: counts, then what is wrong, with coordinates."""
    complete = report["complete"]
    details = report["details"]
    found = Table(
        title=f"Session {report['session']} is {'complete' if complete else 'NOT complete'}",
        title_style="bold green" if complete else "bold red",
        show_header=False,
        caption=details.get("stands"),
    )
    found.add_column(justify="left")
    found.add_column(justify="right", overflow="fold")
    for label, name in (
        ("results that there should be", "expected"),
        ("results at run time", "run_time"),
        ("results by cleanup", "cleanup"),
    ):
        found.add_row(label, count_text(report[name]))
    if "corrections" in details:
        found.add_row("results by corrections", count_text(details["corrections"]["results"]))
    for label, name in (("missing", "missing"), ("doubled or altered", "doubled")):
        found.add_row(label, count_text(report[name]))
    if "unmatched" in details:
        found.add_row("unmatched, of those that there should be", count_text(details["unmatched"]))
    if "loss" not in details:
        found.add_row("keys", f"{details['keys']:,}")
        found.add_row("input rows in quarantine", f"{details['quarantined']:,}")
    found.add_row("took", f"{details['seconds']:.1f} s")
    for problem in details["problems"]:
        found.add_row("[red]problem[/red]", problem)
    for each in details["differences"]:
        key = ", ".join(f"{name} {value}" for name, value in each["key"].items())
        places = ", ".join(
            f"{stream} {place['partition']}:{place['offset']}"
            if place["offset"] is not None
            else f"no {stream}"
            for stream, place in each["coordinates"].items()
        )
        found.add_row(
            f"[red]{key}[/red]",
            f"{places}: found {each['found']}, should be {each['expected']}",
        )
    return found
