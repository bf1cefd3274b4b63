"""Scenarios: what a file may say, and errors that name the line."""

from __future__ import annotations

import pytest

from spillway_schemas.scenario import ScenarioError, load_scenario, shipped
from tests.scenarios import parse_scenario

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
        (("seed = 3", "sed = 3"), r":2: sed: there is no such key"),
        (("[streams.", "[stream."), r"^[^\n]*: streams: missing"),
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


OWN = """
rows = 100
duration_s = 10
[domains.account]
count = 20
[streams.orders]
fields = { number = "order.id", account = "account.symbol", ts = "time", amount = "price" }
draws = { order = { distribution = "tuple-range" } }
[domains.order]
count = 100
"""


def test_fields_are_of_domains_or_made_up():
    scenario = parse_scenario(OWN)
    assert scenario.streams["orders"].domains == ("order", "account")
    assert scenario.distribution("orders", "order").distribution == "tuple-range"
    assert scenario.distribution("orders", "account").distribution == "uniform"
    assert scenario.domain("account").count == 20
    with pytest.raises(KeyError):
        scenario.domain("keys")
    assert parse_scenario(SMALL).streams["stock"].domains == ("keys",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("order.id", "order.name"),
            r"fields\.number: 'order\.name' is nothing that a field may be",
        ),
        (('"order.id"', '"words"'), r"draws\.order: no field is of the domain order"),
        (("order.id", "trade.id"), r"draws\.order: no field"),
        (
            ("account.symbol", "acount.symbol"),
            r"there is no domain 'acount'; there are: account, o",
        ),
        (("account.symbol", "keys.symbol"), r"streams\.orders: keys are needed, \[keys\]"),
        (("number =", '"a b" ='), r"'a b' is no name of a field"),
        (("draws =", "keys ="), r"keys"),
        (("draws = { order", 'kind = "stock"\ndraws = { order'), r"give either kind .* or fields"),
        (("domains.order", "domains.keys"), r"there is no domain 'order'|domains\.keys"),
        (("count = 20", "count = 20\ngroups = 100"), r"groups must be a power of two, not 100"),
    ],
)
def test_a_wrong_field_is_said(change, message):
    assert change[0] in OWN
    with pytest.raises(ScenarioError, match=message):
        parse_scenario(OWN.replace(*change))


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("no-offset", "a time"),
        ("not-finite", "a price or a size"),
        ("too-big", "a price or a size"),
        ("wrong-type", "a price or a size"),
    ],
)
def test_what_fields_have_not_cannot_be_broken(kind, what):
    text = f"malformed = {{ {kind} = 0.1 }}\n" + OWN
    parse_scenario(text)
    without = text.replace(', ts = "time", amount = "price"', "")
    with pytest.raises(
        ScenarioError, match=rf"malformed\.{kind}: no field of streams\.orders is {what}"
    ):
        parse_scenario(without)


def test_a_kind_has_no_draws_and_fields_need_a_domain():
    with pytest.raises(ScenarioError, match="draws are for fields: with a kind give keys"):
        parse_scenario(SMALL + 'draws = { keys = { distribution = "zipf" } }\n')
    with pytest.raises(ScenarioError, match="one of the fields is of a domain"):
        parse_scenario(SMALL.replace('kind = "stock"', 'fields = { ts = "time" }'))
    with pytest.raises(ScenarioError, match=r"streams\.stock: keys are needed"):
        parse_scenario(SMALL.replace("[keys]", "[domains.other]"))


RATIOS = {"3-1-1": (3, 1, 1), "1-3-3": (1, 3, 3), "3-2-3": (3, 2, 3)}


@pytest.mark.parametrize("name", RATIOS)
def test_five_way_scenarios_have_the_papers_parameters(name):
    """SIGMOD 2006, 6.1 and Figures 16, 19 and 20."""
    scenario = load_scenario(f"papers-five-way-{name}")
    for domain, average in zip(("k1", "k2", "k3"), RATIOS[name], strict=True):
        keys = scenario.domain(domain)
        shares = sum(each.share * each.ratio for each in keys.classes)
        assert shares * 30_000 / keys.tuple_range == pytest.approx(average, abs=0.01)
        assert len(keys.classes) > 1, "groups differ in how much they yield"
    for stream in "abcde":
        assert scenario.volume(stream).rate == 20, "50 ms between rows"
        assert scenario.volume(stream).duration_s == 3_000
    small = load_scenario("five-way")
    for domain in ("k1", "k2", "k3"):
        large = load_scenario("papers-five-way-3-1-1").domain(domain)
        assert small.domain(domain).classes == large.classes
        assert small.domain(domain).tuple_range * 7.5 == large.tuple_range


def test_an_unknown_name_lists_what_is_shipped():
    with pytest.raises(ScenarioError, match=r"shipped are bench, bench-five-way, bench-window"):
        load_scenario("tomorrow")
    with pytest.raises(ScenarioError, match=r"no such file"):
        load_scenario("tomorrow.toml")
