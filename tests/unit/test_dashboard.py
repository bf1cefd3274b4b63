"""The dashboard against the code: each query parses, and asks for what is served."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from scripts import dashboard
from spillway.metrics.catalogue import CATALOGUE
from spillway.metrics.exposition import families
from spillway.metrics.figures import ScrapeFigures
from tests.promtool import promtool
from tests.unit.test_alerts import LABELS, selectors
from tests.unit.test_metrics import everything

MADE: dict[str, Any] = json.loads(dashboard.FILE.read_text())
PANELS: list[dict[str, Any]] = [each for each in MADE["panels"] if each["type"] != "row"]
NOT_DRAWN = {
    "spillway_stream_info",  # words
    "spillway_snapshot_timestamp_seconds",  # of the figures themselves
    "spillway_production_delay_seconds",  # by its buckets
}
BY_GRAFANA = {"$__rate_interval": "5m", "$__range": "1h", "$job": "spillway", "$instance": "h:1"}

every_query = pytest.mark.parametrize(
    "target",
    [target for panel in PANELS for target in panel["targets"]],
    ids=lambda target: target["expr"],
)


def asked(target: dict[str, Any]) -> str:
    """The expression as Grafana sends it."""
    found: str = target["expr"]
    for name, value in BY_GRAFANA.items():
        found = found.replace(name, value)
    return found


def test_the_file_is_up_to_date() -> None:
    assert dashboard.FILE.read_text() == dashboard.text(), "run: python -m scripts.dashboard"


@every_query
def test_a_query_asks_for_what_is_served(target: dict[str, Any]) -> None:
    expression = asked(target)
    assert "$" not in expression
    found = list(selectors(promql_parser.parse(expression)))
    assert {each.name for each in found} == set(re.findall(r"\bspillway_\w+", expression))
    for each in found:
        assert each.name in LABELS
        told = {matcher.name for matcher in each.matchers.matchers}
        assert told == {"job", "instance"}, "of one stream"


@every_query
def test_a_legend_names_labels_that_there_are(target: dict[str, Any]) -> None:
    names = {each.name for each in selectors(promql_parser.parse(asked(target)))}
    known = set.intersection(*(set(LABELS[name]) for name in names))
    assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known


def series(figures: ScrapeFigures, minutes: int) -> list[dict[str, str]]:
    """What Prometheus has of a stream that shows these figures; what counts goes on counting."""
    labels = {"job": BY_GRAFANA["$job"], "instance": BY_GRAFANA["$instance"]}
    made = []
    for family in families(figures):
        for sample in family.samples:
            told = {**sample.labels, **labels}
            names = ", ".join(f"{name}={json.dumps(value)}" for name, value in told.items())
            more = {"counter": sample.value or 1, "histogram": sample.value}.get(family.type, 0)
            values = f"{sample.value!r}+{more!r}x{minutes}"
            made.append({"series": f"{sample.name}{{{names}}}", "values": values})
    return made


def test_prometheus_has_an_answer_to_every_query(tmp_path: Path) -> None:
    """A number at least, not NaN; of what counts, more than nothing.

    Kills: a query of Grafana that is one, names what is served, and finds nothing: a quotient of
    series whose labels differ, a quantile of no buckets.
    """
    asks = {asked(target) for panel in PANELS for target in panel["targets"]}
    least = {each: "0" if re.search(r"\b(rate|increase)\(", each) else "-Inf" for each in asks}
    test = {
        "interval": "1m",
        "input_series": series(everything(tmp_path)[1], 90),
        "promql_expr_test": [
            {
                "expr": f"count(({each}) > {least[each]}) > bool 0",
                "eval_time": "90m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
            for each in sorted(asks)
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps({"tests": [test]}))
    promtool(tmp_path, "test", "rules", "test.yml")


def test_every_figure_is_drawn() -> None:
    drawn = {
        each.name
        for panel in PANELS
        for target in panel["targets"]
        for each in selectors(promql_parser.parse(asked(target)))
    }
    served = {family.name for family in CATALOGUE}
    assert served - drawn == NOT_DRAWN
    assert drawn - served == {"spillway_production_delay_seconds_bucket"}


def test_counters_are_drawn_as_rates() -> None:
    counters = {family.name for family in CATALOGUE if family.kind == "counter"}
    for panel in PANELS:
        for target in panel["targets"]:
            for name in counters & set(re.findall(r"\bspillway_\w+", target["expr"])):
                assert re.search(rf"(rate|increase)\({name}", target["expr"]), target["expr"]


def test_panels_are_apart_and_within_the_grid() -> None:
    ids = [each["id"] for each in MADE["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in MADE["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] <= place["x"] + place["w"] <= dashboard.WIDTH
    for one, other in combinations(MADE["panels"], 2):
        a, b = one["gridPos"], other["gridPos"]
        apart_x = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart_y = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart_x or apart_y, (one["title"], other["title"])


def test_each_panel_says_what_it_shows() -> None:
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)
    assert all(panel["description"].endswith(".") for panel in PANELS)
