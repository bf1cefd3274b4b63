"""Scenarios: what a file may say, and errors that name the line."""

from __future__ import annotations

import pytest

from spillway_schemas.scenario import ScenarioError, load_scenario, parse_scenario, shipped

SMALL = """
seed = 3
rows = 100
duration_s = 10
[keys]
count = 10
[streams.stock]
kind = "stock"
"""


def test_every_shipped_scenario_loads_and_says_what_it_is():
    assert {"demo", "bench", "sample-day"} <= set(shipped())
    for name in shipped():
        assert len(load_scenario(name).description) > 20


def test_a_stream_needs_exactly_two_of_rows_duration_and_rate():
    assert parse_scenario(SMALL).volume("stock").rate == 10
    assert not parse_scenario(SMALL).volume("stock").paced
    rated = parse_scenario(SMALL.replace("duration_s = 10", "rate = 5"))
    assert rated.volume("stock").rows == 100
    assert rated.volume("stock").paced
    for wrong in (SMALL.replace("rows = 100\n", ""), SMALL.replace("rows", "rate = 3\nrows")):
        with pytest.raises(ScenarioError, match=r"streams\.stock: exactly two of rows"):
            parse_scenario(wrong)


def test_a_streams_own_two_values_win_over_the_scenarios():
    own = SMALL + "rows = 7\nrate = 2.0\n"
    volume = parse_scenario(own).volume("stock")
    assert (volume.rows, volume.rate) == (7, 2.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seed = 3", "sed = 3"), r":2: sed: there is no such setting"),
        (("count = 10", "count = 0"), r":6: keys\.count"),
        (("count = 10", "count = 10\ndistribution = 'pareto'"), r":7: keys\.distribution"),
        (('kind = "stock"', 'kind = "bond"'), r":8: streams\.stock\.kind"),
        (("count = 10", "tuple_range = 30"), r"tuple_range and one or more"),
        (("count = 10", "names = ['A', 'A']"), r"named twice"),
        (("count = 10", "names = ['A\"B']"), r"a symbol has letters"),
        (("seed = 3", "start = 2026-01-05T14:30:00"), r"a time with its offset"),
        (("seed = 3", "malformed = { not-json = 1.5 }"), r"shares lie between 0 and 1"),
        (("seed = 3", "malformed = { nonsense = 0.1 }"), r"malformed\.nonsense"),
    ],
)
def test_a_wrong_file_gets_the_line_and_what_is_wrong(change, message):
    with pytest.raises(ScenarioError, match=message):
        parse_scenario(SMALL.replace(*change))


def test_classes_give_the_number_of_keys():
    text = SMALL.replace(
        "count = 10",
        "tuple_range = 300\nclasses = [{share = 0.5, ratio = 3}, {share = 0.5, ratio = 1}]",
    )
    keys = parse_scenario(text).keys
    assert keys.distribution == "tuple-range"
    assert keys.class_keys() == [50, 150]


def test_an_unknown_name_lists_what_is_shipped():
    with pytest.raises(ScenarioError, match=r"shipped are bench, demo"):
        load_scenario("tomorrow")
    with pytest.raises(ScenarioError, match=r"no such file"):
        load_scenario("tomorrow.toml")
