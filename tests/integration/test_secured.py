"""A day against a Kafka with TLS, logins and permissions, as far as these allow.

The user may read and describe the query's topics, and nothing else.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.day import Day, chained, messages
from tests.integration.secured import (
    PASSWORDS,
    READER,
    TAG,
    WORD,
    WRITER,
    SecuredBroker,
    SecuredDay,
    scenario,
    secured_broker,
    secured_topics,
)

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
