"""Two queries side by side under an Airflow that was there before spillway (`make soak`), which is
installed and configured as `docs/bring-your-own.md` says.

Kafka asks for a client's certificate, whose key is closed by a password that only Airflow's
connection has, and allows no more than reading the topics. The tables are in an object store, whose
secret only another connection has. One Airflow for the whole file, as it
takes minutes to install; each test is a day of both queries. The first day of one is closed while
the other's goes on. On the second Kafka loses rows of one, and a person accepts that on the page.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest
from kafka import KafkaAdminClient, TopicPartition
from playwright.sync_api import Browser, FrameLocator, Page, expect

from spillway.kafka.client import KafkaCluster
from spillway.kafka.options import python_options
from spillway.protocol.offsets import reaches
from spillway.storage import folder
from tests.browser.chromium import PATIENCE_MS, SHOWN, chromium, open_airflow, program
from tests.integration.airflow_server import calm_calendar, finish
from tests.integration.day import STREAMS, delta_rows, messages, wait_for
from tests.integration.own_airflow import KAFKA, LAKE, OwnAirflow
from tests.integration.query_day import QueryDay
from tests.integration.secured import (
    KEY_PASSWORD,
    READER,
    ROOT_USER,
    WRITER,
    SecuredBroker,
    SecuredDay,
    kept_in,
    scenario,
    secured_broker,
    secured_topics,
    shown_by_processes,
)
from tests.missing import without
from tests.s3_server import KEY, SECRET, S3Server, s3_server

LASTS_S = 3600
pytestmark = [pytest.mark.soak, pytest.mark.timeout(LASTS_S)]

NAMES = ("threes", "pairs")
DAGS = ("market_open", "rebalance", "stream_watch", "market_close", "maintenance")
WHY = "a week of retention"
SETTINGS = """
[kafka]
bootstrap_servers = "{bootstrap}"

[warehouse]
root = "{root}"

[warehouse.options]
{options}

[session]
calendar = "{calendar}"

[state]
root = "{state}"
groups = 32

[stream]
start = "earliest"
trigger_s = 0.2
max_rows_per_epoch = 1_000

[spark]
master = "local[2]"

[queries.threes]
query = "{folder}/threes.toml"
state.slots = 2
state.budget_bytes = "96 KiB"

[queries.pairs]
query = "{folder}/pairs.toml"
state.slots = 1
state.budget_bytes = "48 KiB"
"""


@dataclass
class OwnDay(SecuredDay, QueryDay):
    """A day of one query on a broker that lets others read and write than its stream."""


@dataclass
class World:
    """The Airflow, both queries, a browser, and the broker."""

    own: OwnAirflow
    server: Any
    secured: SecuredBroker
    store: S3Server
    browser: Browser
    threes: OwnDay
    pairs: OwnDay
    seed: int = 0
    first: str = ""
    """The first session of both."""
    pages: dict[str, Page] = field(default_factory=dict)

    @property
    def both(self) -> tuple[OwnDay, OwnDay]:
        return self.threes, self.pairs

    def produce(self, rows: int, keys: int = 900) -> None:
        """More messages, none like those before, as somebody who may write."""
        self.seed += 1
        self.threes.produce(messages(self.seed, rows, keys=keys))

    def read_all(self, day: OwnDay) -> None:
        """Wait until no row waits."""
        view = KafkaCluster(self.secured.sasl, self.secured.login(ROOT_USER))
        try:
            ends = view.end_offsets(sorted(day.topics.values()))
        finally:
            view.close()

        def is_read() -> bool:
            epochs = day.epochs()
            return bool(epochs) and reaches(epochs[-1]["end"], ends)

        wait_for(is_read, 400, f"{day.name} reads all rows", 0.5)

    def run(self, day: OwnDay, dag: str, partition: str | None = None, **conf: Any) -> str:
        """A run of a DAG of a query to its end, which must be success; its id."""
        name = f"{day.name}_{dag}"
        run = self.server.trigger(name, partition, **conf)
        ended = finish(self.server, name, run, 420)
        assert ended == "success", (name, self.server.tasks(name, run))
        return str(run)

    def said(self, day: OwnDay, dag: str, run: str, task: str) -> Any:
        """What a task has returned."""
        return self.server.xcom(f"{day.name}_{dag}", run, task)

    def close(self, day: OwnDay, session: str) -> str:
        """Seal, cleanup, verify; the run."""
        return self.run(day, "market_close", session, at="now", reason=f"the end of {day.name}")

    def completed(self) -> list[tuple[str, str]]:
        """Queries and days that Airflow has told others are complete."""
        events = self.server.call("GET", "/api/v2/assets/events")["asset_events"]
        return sorted((each["name"], each["partition_key"]) for each in events)

    def view(self, day: OwnDay, view: str = "overview") -> FrameLocator:
        """A query's page in Airflow's navigation."""
        if (page := self.pages.get(day.name)) is None:
            url, password = self.server.url, self.server.password()
            page = self.pages[day.name] = open_airflow(self.browser, url, "admin", password)
        page.goto(f"{self.server.url}/plugin/{section(day)}/{section(day)}/#{view}")
        frame = page.frame_locator("iframe")
        frame.locator(SHOWN).first.wait_for()
        return frame


def section(day: OwnDay) -> str:
    return f"spillway_{day.name}"


def complete(day: OwnDay) -> str:
    """The asset that others wait for."""
    return f"{section(day)}_complete_session"


@pytest.fixture(scope="module")
def world(jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if program() is None:
        without("Chromium", "install it, or name it with SPILLWAY_CHROMIUM")
    expect.set_options(timeout=PATIENCE_MS)
    folder = tmp_path_factory.mktemp("own")
    own = OwnAirflow(folder, tmp_path_factory.mktemp("environment"))
    own.make()
    with contextlib.ExitStack() as stack:
        (folder / "broker").mkdir()
        secured = stack.enter_context(secured_broker(folder / "broker"))
        names = secured_topics(secured, "own")
        store = stack.enter_context(s3_server())
        threes, pairs = (
            OwnDay(
                folder / "day",
                secured.mutual,
                {stream: names[stream] for stream in streams},
                {},
                name=name,
                secured=secured,
                store=store,
            )
            for name, streams in zip(NAMES, (STREAMS, STREAMS[:2]), strict=True)
        )
        stack.callback(threes.clean)
        calendar = calm_calendar(LASTS_S, 600)
        settings = SETTINGS.format(
            bootstrap=secured.mutual,
            root=store.root(threes.folder.name),
            options="\n".join(f'{name} = "{value}"' for name, value in in_file(store).items()),
            calendar=calendar,
            state=threes.state,
            folder=threes.folder,
        )
        own.config.write_text(settings)
        own.configure(secured.closed_certificate(READER), KEY, SECRET, calendar=calendar)
        for name in NAMES:
            stack.callback(end_stream, own, name)
        server = stack.enter_context(
            own.standalone(*(f"{name}_{dag}" for name in NAMES for dag in DAGS))
        )
        browser = stack.enter_context(chromium())
        yield World(own, server, secured, store, browser, threes, pairs)


def in_file(store: S3Server) -> dict[str, str]:
    """Of the store's options those that are no secret."""
    return {n: each for n, each in store.options.items() if each not in (KEY, SECRET)}


def end_stream(own: OwnAirflow, name: str) -> None:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.killpg(own.note(name)["pid"], signal.SIGKILL)


def test_each_has_its_own_day(world: World) -> None:
    """Both are opened and rebalanced; that of the pairs is closed while the other goes on."""
    server, threes, pairs = world.server, world.threes, world.pairs
    writer = {"SPILLWAY_KAFKA__OPTIONS": json.dumps(world.secured.certificate(WRITER))}
    world.own.spillway("threes", f"produce {scenario(threes)}", **writer)
    world.produce(3_000)
    dags = {each["dag_id"] for each in server.call("GET", "/api/v2/dags")["dags"]}
    assert dags == {f"spillway_{name}_{dag}" for name in NAMES for dag in DAGS}
    for day in world.both:
        world.own.unpause(*(f"{day.name}_{dag}" for dag in ("market_open", "rebalance")))
        run = world.run(day, "market_open")
        warned = world.said(day, "market_open", run, "doctor")
        assert sum("grant DescribeConfigs" in each for each in warned) == len(day.topics)
    for day in world.both:
        world.read_all(day)
        decided = world.said(day, "rebalance", world.run(day, "rebalance"), "decide")
        assert decided["asked"] or decided["declined"]
    opened = {day.epochs()[-1]["session"] for day in world.both}
    [world.first] = opened
    assert threes.slots_of_state() == {"slot-0", "slot-1"}
    assert pairs.slots_of_state() == {"slot-0"}
    shows_both(world)

    world.own.unpause("pairs_market_close")
    closed = world.close(pairs, world.first)
    assert world.said(pairs, "market_close", closed, "verify")["complete"] is True
    assert pairs.check(world.first)["cleanup"] > 0
    world.produce(3_000)
    for day in world.both:
        world.read_all(day)
    assert pairs.epochs()[-1]["session"] > world.first
    assert {each["session"] for each in threes.epochs()} == {world.first}
    assert sealing(threes) == []
    assert server.runs("threes_market_close") == []
    assert world.completed() == [(complete(pairs), world.first)]

    world.own.unpause("threes_market_close")
    closed = world.close(threes, world.first)
    assert world.said(threes, "market_close", closed, "verify")["complete"] is True
    assert threes.check(world.first)["cleanup"] > 0
    pairs.check(world.first)
    assert threes.sealed(world.first)["end"] != pairs.sealed(world.first)["end"]
    assert world.completed() == [(complete(day), world.first) for day in (pairs, threes)]
    share_nothing(world)


def sealing(day: OwnDay) -> list[dict[str, Any]]:
    """The entries that have sealed a session of the query, or were told to."""
    return [
        entry
        for entry in day.entries()
        if entry.get("sealed") or any(c["kind"] == "seal" for c in entry.get("commands", ()))
    ]


def shows_both(world: World) -> None:
    """Each has a page with its own figures, and the way to the other."""
    for day, other in ((world.threes, world.pairs), (world.pairs, world.threes)):
        frame = world.view(day)
        rows = sum(sum(ends) for ends in day.epochs()[-1]["end"].values())
        expect(frame.locator("[data-tile='rows in'] b")).to_have_text(f"{rows:,}")
        for topic in day.topics.values():
            expect(frame.locator("main")).to_contain_text(topic)
        if other is world.threes:
            expect(frame.locator("main")).not_to_contain_text(other.topics["review"])
        page = world.pages[day.name]
        page.get_by_role("button", name="Plugins").click()
        for name in NAMES:
            expect(page.get_by_text(f"Spillway {name}", exact=True).first).to_be_visible()
        page.keyboard.press("Escape")
        choice = frame.get_by_role("combobox", name="Query")
        expect(choice).to_have_value(section(day))
        choice.select_option(section(other))
        page.wait_for_url(re.compile(f"/plugin/{section(other)}/"))
        told = world.server.call("GET", f"/{section(day)}/data/overview")
        assert told["stream"]["lag_rows"] == 0, told  # the page asks Kafka, too


def share_nothing(world: World) -> None:
    """What one has is not seen at the other, and none is in what all of Airflow shares."""
    ids, running = set(), set()
    for day in world.both:
        ids.add(day.entries()[0]["warehouse_id"])
        for epoch in day.epochs():
            assert set(epoch["end"]) == set(day.topics.values())
        results = day.results()
        prefixes = {name.partition("_")[0] for name in results[0] if name.endswith("_offset")}
        assert prefixes == set(day.topics)
        note = world.own.note(day.name)
        assert note["argv"][note["argv"].index("--query") + 1] == day.name
        running.add(note["pid"])
    assert len(ids) == len(running) == len(NAMES)
    root = world.store.root(world.threes.folder.name)
    places = {tuple(info.name.split("/")[:2]) for info in folder(root, world.store.options).list()}
    assert places == {("queries", name) for name in NAMES}
    call = world.server.call
    assert call("GET", "/api/v2/variables")["variables"] == []
    assert [each["name"] for each in call("GET", "/api/v2/pools")["pools"]] == ["default_pool"]
    connections = call("GET", "/api/v2/connections")["connections"]
    ours = [
        each["connection_id"]
        for each in connections
        if not each["connection_id"].endswith("_default")
    ]
    assert ours == [KAFKA, LAKE]


def test_a_loss_is_accepted_on_the_page(world: World) -> None:
    """A lost slot needs rows that Kafka does not hold any more, and others have gone before they
    were read. The day ends as not complete, that of the other query as any other."""
    server, threes, pairs = world.server, world.threes, world.pairs
    world.produce(2_000, keys=800)
    for day in world.both:
        world.read_all(day)
    session = threes.epochs()[-1]["session"]
    assert session == pairs.epochs()[-1]["session"] > world.first
    read = threes.read_topics()
    topic = threes.topics["review"]
    unread, again = (topic, 0), (topic, 1)
    began = threes.sealed(world.first)["end"][topic]
    gone = {again: began[1] + 100}
    delete(world, gone)
    lost = threes.slot_folders()[0]
    assert lost.name == "slot-0"
    stream = world.own.note("threes")["pid"]
    shutil.rmtree(lost)
    world.produce(1_000, keys=800)
    wait_for(lambda: not psutil.pid_exists(stream), 120, "the end of the stream", 0.5)
    keep(read, threes.read_topics())
    gone[unread] = threes.epochs()[-1]["end"][topic][0] + 50
    delete(world, gone)

    offsets = sum(end - began[partition] for (_, partition), end in gone.items())
    accepts(world, session, offsets)
    world.own.unpause("threes_stream_watch")
    world.produce(500, keys=800)
    world.read_all(threes)
    assert world.own.note("threes")["pid"] != stream
    note = world.view(threes).locator("[data-note=loss-accepted]")
    expect(note).to_contain_text("will end as not complete")
    expect(note).to_contain_text(f"admin: {WHY}")
    for words in ("[data-note=loss]", "[data-note=loss-accepted]"):
        expect(world.view(pairs).locator(words)).to_have_count(0)

    keep(read, threes.read_topics())
    run = world.close(threes, session)
    tasks = server.tasks("threes_market_close", run)
    assert (tasks["cleanup"], tasks["verify"]) == ("success", "skipped")
    _, phases = threes.check_lossy(session, read, gone)
    assert phases["run-time"] > 0
    [(whole, loss)] = told_of_losses(threes, "verified")
    assert whole is False
    assert (loss["by"], loss["reason"]) == ("admin", WHY)
    assert {(each["topic"], each["partition"]): each["end"] for each in loss["ranges"]} == gone
    frame = world.view(threes, f"sessions/{session}")
    expect(frame.locator(".detail")).to_contain_text(f"admin: {WHY}")

    closed = world.close(pairs, session)
    assert world.said(pairs, "market_close", closed, "verify")["complete"] is True
    pairs.check(session)
    assert told_of_losses(pairs, "verified") == []
    assert world.completed() == [
        (complete(pairs), world.first),
        (complete(pairs), session),
        (complete(threes), world.first),
    ]


def delete(world: World, before: dict[tuple[str, int], int]) -> None:
    """Have Kafka forget rows."""
    options = python_options(world.secured.login(ROOT_USER), "admin")
    with KafkaAdminClient(bootstrap_servers=world.secured.sasl, **options) as admin:
        admin.delete_records({TopicPartition(*place): at for place, at in before.items()})


def accepts(world: World, session: str, offsets: int) -> None:
    """As an operator does who looks at the page and sees what is gone."""
    frame = world.view(world.threes)
    note = frame.locator("[data-note=loss]")
    topic = world.threes.topics["review"]
    for partition in (0, 1):
        expect(note).to_contain_text(f"{topic}/{partition} from offset")
    expect(note).to_contain_text("50 offsets of it before they were read")
    note.get_by_role("button", name="Accept…").click()
    form = frame.locator("dialog[open]")
    expect(form.get_by_label("Session")).to_have_value(session)
    form.get_by_label("Reason").fill(WHY)
    form.get_by_role("button", name="Accept…").click()
    confirm = frame.get_by_role("group", name="Confirm")
    expect(confirm).to_contain_text("the day ends as not complete")
    confirm.get_by_role("button", name="Do it").click()
    said = f"{offsets:,} offsets are accepted as lost, 50 of them before they were read"
    expect(frame.locator(".outcome")).to_contain_text(said, timeout=90_000)


Read = dict[str, list[tuple[int, int, bytes | None]]]
"""Of `read_topics`."""


def keep(read: Read, more: Read) -> None:
    """Add what Kafka holds now to what it held before."""
    for stream, rows in more.items():
        read[stream] = sorted({*read[stream], *rows}, key=lambda row: row[:2])


def told_of_losses(day: OwnDay, event: str) -> list[tuple[bool | None, dict[str, Any]]]:
    """What the query's table `sessions` has of losses, in its events of a kind: whether the day is
    complete, and what it has lost."""
    rows = [row for row in delta_rows(day.warehouse() / "sessions", None) if row["event"] == event]
    details = [(row["complete"], json.loads(row["details"] or "{}").get("loss")) for row in rows]
    return [(complete, loss) for complete, loss in details if loss is not None]


def test_nothing_is_written_down_and_nothing_was_unforeseen(world: World) -> None:
    """Both secrets are in the connections alone; no command has ended in a bug. The stream
    that lacked rows has kept where that was noticed."""
    for word in (KEY_PASSWORD, SECRET):
        assert not shown_by_processes(word)
        assert not kept_in(world.own.folder, word)
    [kept] = world.own.data.rglob("last-error.txt")
    assert kept.parent.name == "threes"
    assert "Kafka does not hold rows any more" in kept.read_text().splitlines()[-1]
