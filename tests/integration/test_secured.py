"""A day against a Kafka with TLS, logins and permissions, as far as these allow.

The user may read and describe the query's topics, and nothing else. The relay's may do what its
page says.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kafka import KafkaProducer

from spillway.cli import main
from spillway.kafka.client import cluster
from spillway.kafka.options import python_options
from spillway.produce.transactions import NotPermitted
from spillway.relay.kept import position_topic
from spillway.relay.run import deliver
from spillway.stream import interrupts
from tests.integration.day import ROOT, Day, chained, delta_rows, messages
from tests.integration.secured import (
    PASSWORDS,
    READER,
    RELAYER,
    ROOT_USER,
    TAG,
    WORD,
    WRITER,
    Right,
    SecuredBroker,
    SecuredDay,
    let,
    scenario,
    secured_broker,
    secured_topics,
)
from tests.integration.test_relay import COMPACTED, Scene, first_step

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

DAY = "2026-01-05"
ROWS = 1_000


@pytest.fixture(scope="module")
def secured(jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture
def make_day(
    secured: SecuredBroker, tmp_path: Path, spark_env: dict[str, str]
) -> Iterator[Callable[[str, dict[str, str]], Day]]:
    days: list[Day] = []

    def make(bootstrap: str, options: dict[str, str]) -> Day:
        day = SecuredDay(
            tmp_path / "day",
            bootstrap,
            secured_topics(secured, tmp_path.name),
            spark_env,
            budget_bytes=128 << 10,
            max_rows=1_000,
            secured=secured,
        )
        # As a person would: the commands read it from where they are run.
        lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in options.items()]
        settings = day.folder / "spillway.toml"
        settings.touch(0o600)
        settings.write_text("\n".join(["[kafka.options]", *lines, ""]))
        days.append(day)
        return day

    yield make
    for day in days:
        day.clean()


def test_a_day_with_certificates(
    secured: SecuredBroker, make_day: Callable[[str, dict[str, str]], Day]
) -> None:
    """One writes and another reads."""
    day = make_day(secured.mutual, secured.certificate(READER))
    writer = json.dumps(secured.certificate(WRITER))
    day.ok("produce", scenario(day), SPILLWAY_KAFKA__OPTIONS=writer)
    day.produce(messages(31, 3_000, keys=600))
    code, told = day.output("doctor")
    assert code == 0, told
    assert told.count("grant DescribeConfigs") == 3  # it may not see how long rows are kept
    commands = (
        ["stream", "--session", DAY, "--available-now"],
        ["seal", "--session", DAY],
        ["stream", "--until-sealed", DAY],
        ["cleanup", "--session", DAY],
        ["verify", "--session", DAY],
    )
    day.ok(*chained(*commands))
    assert day.check(DAY)["cleanup"] > 0
    code, told = day.output("status", "--json")
    assert json.loads(told)["lag_rows"] == 0


@pytest.mark.soak  # in `make test` a day with logins goes by under Airflow: `test_airflow_day`
def test_a_day_with_logins(
    secured: SecuredBroker, make_day: Callable[[str, dict[str, str]], Day]
) -> None:
    """One writes and another reads: the stream, and what cleanup reads again for slots that had
    lost their state."""
    day = make_day(secured.sasl, secured.login(READER))
    day.extra["RECOVERY__MODE"] = "defer"
    refused = day.run("produce", scenario(day))
    assert refused != 0, "the reader may not write"
    writer = json.dumps(secured.login(WRITER))
    day.ok("produce", scenario(day), SPILLWAY_KAFKA__OPTIONS=writer)
    day.produce(messages(32, ROWS, keys=600))
    day.ok("stream", "--session", DAY, "--available-now")
    assert day.results()
    shutil.rmtree(day.state)
    day.produce(messages(33, ROWS, keys=600))
    day.finish(DAY)
    assert [e["deferred_slots"] for e in day.journal.epochs() if e["deferred_slots"]] == [[0, 1]]
    assert day.check(DAY)["cleanup"] > 0
    _, told = day.output("status", "--json")
    assert json.loads(told)["lag_rows"] == 0
    everything = (day.folder / "log.txt").read_text() + told
    assert not [word for word in (WORD, PASSWORDS[WRITER]) if word in everything]


def test_a_wrong_password_is_said_and_not_shown(
    secured: SecuredBroker, make_day: Callable[[str, dict[str, str]], Day]
) -> None:
    options = secured.login(WRITER)
    login = options["sasl.jaas.config"].replace(PASSWORDS[WRITER], "not-the-password")
    day = make_day(secured.sasl, options | {"sasl.jaas.config": login})
    for command in ("doctor", "topics"):
        code, told = day.output(command)
        assert code != 0
        # The client often sees no more of it than that it is sent away.
        assert re.search("password is wrong|another user or password", " ".join(told.split())), told
        assert "not-the-password" not in told


def test_topics_that_the_user_may_not_see_are_named(
    secured: SecuredBroker, make_day: Callable[[str, dict[str, str]], Day]
) -> None:
    day = make_day(secured.mutual, secured.certificate(READER))
    day.topics = {stream: name.replace(TAG, "other-") for stream, name in day.topics.items()}
    day.__post_init__()
    code, told = day.output("stream", "--available-now")
    assert code == 3
    assert "other-" in told


# --- the relay -------------------------------------------------------------------------------

_ROW = re.compile(r"^\| (topic|transactional id) `(\S*TOPIC\S*)` \| (.+) \|$", re.MULTILINE)
RELAYS = [
    Right(kind, name, operation)
    for kind, name, operations in _ROW.findall((ROOT / "docs" / "following.md").read_text())
    for operation in re.findall(r"`([A-Z]\w+)`", operations)
]
"""What a relay into `TOPIC` must be allowed, as its page has it."""


@dataclass
class Relaying:
    """Results, their topic on the secured broker, and the command that relays them."""

    secured: SecuredBroker
    scene: Scene
    capsys: pytest.CaptureFixture[str]

    def of_topic(self, right: Right) -> Right:
        """A right of the page, of this topic."""
        return replace(right, name=right.name.replace("TOPIC", self.scene.topic))

    def let(self, rights: Iterable[Right]) -> None:
        """Let the relay's user do this and nothing else."""
        let(self.secured, RELAYER, map(self.of_topic, rights))

    def run(self, *words: str) -> tuple[int, str]:
        """The command's exit code, and all that it says."""
        with pytest.raises(SystemExit) as it:
            main(["relay", "--topic", self.scene.topic, "--once", *words])
        said = self.capsys.readouterr()
        return int(it.value.code or 0), said.out + said.err

    def check(self) -> None:
        """The records of the topic are the rows of the table."""
        rows = delta_rows(self.scene.results.root / "results", None)
        assert len(rows) == len(self.scene.results.given)
        assert Counter(map(_json, self.scene.read())) == Counter(map(_json, rows))


def _json(row: dict[str, object]) -> str:
    def utc(at: datetime) -> str:
        return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    return json.dumps(row, default=utc, sort_keys=True)


@pytest.fixture
def relaying(
    secured: SecuredBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Relaying]:
    login = secured.login(RELAYER)
    scene = Scene(
        tmp_path / "w",
        secured.sasl,
        f"relayed-{tmp_path.name}",
        options=login,
        reader=secured.login(ROOT_USER),
    )
    settings = {
        "VAR": str(tmp_path / "var"),
        "WAREHOUSE__ROOT": str(scene.results.root),
        "KAFKA__BOOTSTRAP_SERVERS": secured.sasl,
        "KAFKA__OPTIONS": json.dumps(login),
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"SPILLWAY_{name}", value)
    monkeypatch.setattr(interrupts, "stop_on_signals", lambda *_: None)  # here they are pytest's
    yield Relaying(secured, scene, capsys)
    # An error that nothing explains would have left its traceback.
    assert not (tmp_path / "var" / "last-error.txt").exists()


def test_a_relay_that_may_do_what_its_page_says(relaying: Relaying) -> None:
    """It begins a day, and goes on without the right to create; nothing comes twice."""
    results = relaying.scene.results
    results.run_epoch([5, 3])
    results.run_epoch([4])
    relaying.let(RELAYS)
    code, said = relaying.run("--create", "2")
    assert code == 0, said
    relaying.check()
    results.run_epoch([2])
    results.seal()
    results.clean(0, 6)
    results.finish(0)
    relaying.let(right for right in RELAYS if right.operation != "Create")
    topic = f"topic {relaying.scene.topic}: goes on after"
    for begins in (f"{topic} epoch 1, 12 rows relayed", f"{topic} epoch 2, 20 rows relayed"):
        code, said = relaying.run()
        assert code == 0, said
        assert said.startswith(begins)
        relaying.check()
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("lacked", RELAYS, ids=lambda right: f"{right.operation} on {right.name}")
def test_a_relay_that_lacks_a_right_says_which(relaying: Relaying, lacked: Right) -> None:
    """Nothing is relayed, and once the right is granted all is."""
    relaying.scene.results.run_epoch([4])
    relaying.let(right for right in RELAYS if right != lacked)
    code, said = relaying.run("--create", "2")
    assert (code, len(said.splitlines())) == (3, 1), said
    name = re.escape(relaying.of_topic(lacked).name)
    wanted = rf"grant .*\b{lacked.operation}\b.* {lacked.kind} '?{name}(?![\w-])"
    assert re.search(wanted, said), said
    relaying.let(RELAYS)
    code, said = relaying.run("--create", "2")
    assert code == 0, said
    relaying.check()


@pytest.mark.parametrize(
    "taken",
    [right for right in RELAYS if right.operation == "Write"],
    ids=lambda right: right.name,
)
def test_a_right_that_is_taken_while_a_relay_runs(relaying: Relaying, taken: Right) -> None:
    scene = relaying.scene
    relaying.let(RELAYS)
    assert relaying.run("--create", "1")[0] == 0
    scene.results.run_epoch([6])
    with scene.outlet() as outlet:
        follower, kept, step = first_step(scene, outlet)
        relaying.let(right for right in RELAYS if right != taken)
        name = re.escape(relaying.of_topic(taken).name)
        with pytest.raises(NotPermitted, match=rf"grant .*Write on .*{taken.kind} '?{name}'?$"):
            deliver(follower, outlet, kept, step)
    relaying.let(RELAYS)
    code, said = relaying.run()
    assert code == 0, said
    relaying.check()


def test_records_of_others_are_seen_with_a_right_to_read(relaying: Relaying) -> None:
    scene, operator = relaying.scene, relaying.secured.login(ROOT_USER)
    with cluster(scene.bootstrap, operator) as view:
        view.create_topics({scene.topic: 1})
        view.create_topics({position_topic(scene.topic): 1}, COMPACTED)
    options = python_options(operator, "producer")
    with KafkaProducer(bootstrap_servers=scene.bootstrap, **options) as producer:
        producer.send(scene.topic, b"no JSON", b"foreign").get(10)
    relaying.let(RELAYS)
    code, said = relaying.run("--from-now")
    assert code == 3
    assert f"does not let this user read topic {scene.topic}: grant Read on it" in said
    relaying.let([*RELAYS, Right("topic", "TOPIC", "Read")])
    assert relaying.run("--from-now")[0] == 0
    scene.results.run_epoch([2])
    relaying.let(RELAYS)
    assert relaying.run()[0] == 0
    relaying.check()
