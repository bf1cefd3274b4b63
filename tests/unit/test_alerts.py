"""The alert rules against the code: names exist, expressions parse, the runbook has the section."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from spillway.metrics.catalogue import CATALOGUE
from tests.promtool import promtool
from tests.unit.test_docs import cells, section

ROOT = Path(__file__).resolve().parents[2]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "docker/prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
LABELS = {
    **{family.name: {*family.labels, "job", "instance"} for family in CATALOGUE},
    "spillway_production_delay_seconds_bucket": {"le", "job", "instance"},
    "up": {"job", "instance"},
}
"""Per name in an expression the labels that its series have."""

every_rule = pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])


def selectors(expression: Any) -> Iterator[Any]:
    """Every vector selector of a parsed expression."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
        return
    below: list[Any] = [
        getattr(expression, name, None) for name in ("lhs", "rhs", "expr", "vector_selector")
    ]
    for each in [*below, *getattr(expression, "args", [])]:
        if each is not None and not isinstance(each, str | int | float):
            yield from selectors(each)


@every_rule
def test_expressions_parse_and_name_what_is_served(rule: dict[str, Any]) -> None:
    found = list(selectors(promql_parser.parse(rule["expr"])))
    named = set(re.findall(r"\b(?:spillway_\w+|up)\b(?!\")", rule["expr"]))
    assert {each.name for each in found} == named, "the test does not see every name"
    for each in found:
        assert each.name in LABELS, each.name
        if each.name == "up":
            assert 'job="spillway"' in rule["expr"]


@every_rule
def test_labels_of_a_rule_exist(rule: dict[str, Any]) -> None:
    names = {each.name for each in selectors(promql_parser.parse(rule["expr"]))}
    known = set().union(*(LABELS[name] for name in names))
    groupings = re.findall(r"\b(?:by|on|group_left|group_right) \(([^)]*)\)", rule["expr"])
    used = {label.strip() for each in groupings for label in each.split(",") if label.strip()}
    used |= set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert used <= known


@every_rule
def test_a_rule_says_what_to_do_and_where_it_is_written(rule: dict[str, Any]) -> None:
    assert rule["alert"].startswith("Spillway")
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook"}
    assert all(notes[each].endswith(".") for each in ("summary", "description"))
    page, _, anchor = notes["runbook"].partition("#")
    headings = re.findall(r"^## (.+)$", (ROOT / page).read_text(), re.M)
    assert anchor in {re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in headings}


def test_every_alert_is_documented() -> None:
    described = [(row[0], row[2]) for row in cells(section("metrics.md", "The alerts", 2))]
    assert described == [(rule["alert"], rule["labels"]["severity"]) for rule in RULES]


@pytest.mark.parametrize("command", [("check", "alerts.yml"), ("test", "alerts_test.yml")])
def test_prometheus_own_tool_agrees(command: tuple[str, str]) -> None:
    """The rules fire when they should and not on a day that goes well (alerts_test.yml)."""
    what, file = command
    promtool(ROOT / "docker" / "prometheus", what, "rules", file)
