"""A day against a Kafka with TLS, logins and permissions, as far as these allow.

The user may read and describe the query's topics, and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)

from spillway.kafka.client import KafkaCluster
from spillway.kafka.options import python_options
from tests.integration.day import STREAMS, Day, messages
from tests.integration.secured import PASSWORDS, ROOT_USER, SecuredBroker, secured_broker

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

DAY = "2026-01-05"
ROWS = 2_000
TAG = "desk-"
"""How the query's topics begin."""


@pytest.fixture(scope="module")
def secured(jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        options = python_options(broker.login(ROOT_USER), "admin")
        with KafkaAdminClient(bootstrap_servers=broker.sasl, **options) as admin:
            admin.create_acls(
                [
                    allowed(user, operation)
                    for user, operations in {
                        "reader": (ACLOperation.READ, ACLOperation.DESCRIBE),
                        "writer": (ACLOperation.WRITE, ACLOperation.DESCRIBE),
                    }.items()
                    for operation in operations
                ]
            )
        yield broker


def allowed(user: str, operation: ACLOperation) -> ACL:
    topics = ResourcePattern(ResourceType.TOPIC, TAG, ACLResourcePatternType.PREFIXED)
    return ACL(f"User:{user}", "*", operation, ACLPermissionType.ALLOW, topics)


@pytest.fixture
def make_day(
    secured: SecuredBroker, tmp_path: Path, spark_env: dict[str, str]
) -> Iterator[Callable[[str, dict[str, str]], Day]]:
    days: list[Day] = []

    def make(bootstrap: str, options: dict[str, str]) -> Day:
        names = {stream: f"{TAG}{stream}-{tmp_path.name}" for stream in STREAMS}
        view = KafkaCluster(secured.sasl, secured.login(ROOT_USER))
        try:
            view.create_topics(dict.fromkeys(names.values(), 2))
        finally:
            view.close()
        day = Day(tmp_path / "day", bootstrap, names, spark_env, budget_bytes=128 << 10)
        day.max_rows = 1_000
        day.extra["KAFKA__OPTIONS"] = json.dumps(options)
        days.append(day)
        return day

    yield make
    for day in days:
        day.clean()


def produced(secured: SecuredBroker, day: Day, seed: int) -> None:
    """Rows as somebody else sends them, who may do just that."""
    bootstrap, day.bootstrap = day.bootstrap, secured.sasl
    day.client = python_options(secured.login("writer"), "producer")
    day.produce(messages(seed, ROWS, keys=600))
    day.bootstrap = bootstrap


def checked(secured: SecuredBroker, day: Day) -> int:
    """Compare with what an operator reads; results by cleanup."""
    bootstrap, day.bootstrap = day.bootstrap, secured.sasl
    day.client = python_options(secured.login(ROOT_USER), "consumer")
    found = day.check(DAY)["cleanup"]
    day.bootstrap = bootstrap
    return found


def test_a_day_with_read_and_describe_alone(
    secured: SecuredBroker, make_day: Callable[[str, dict[str, str]], Day]
) -> None:
    day = make_day(secured.sasl, secured.login("reader"))
    produced(secured, day, 31)
    code, told = day.output("doctor")
    assert code == 0, told
    assert told.count("grant DescribeConfigs") == 3  # it may not see how long rows are kept
    day.ok("stream", "--session", DAY, "--available-now")
    produced(secured, day, 32)
    day.finish(DAY)
    assert checked(secured, day) > 0
    code, told = day.output("status", "--json")
    assert json.loads(told)["lag_rows"] == 0
    everything = (day.folder / "log.txt").read_text() + told
    assert not [word for word in PASSWORDS.values() if word in everything]


def test_a_client_with_a_certificate(
    secured: SecuredBroker, make_day: Callable[[str, dict[str, str]], Day]
) -> None:
    day = make_day(secured.mutual, secured.certificate("reader"))
    produced(secured, day, 33)
    day.ok("stream", "--session", DAY, "--available-now")
    assert day.results()


def test_a_wrong_password_is_said_and_not_shown(
    secured: SecuredBroker, make_day: Callable[[str, dict[str, str]], Day]
) -> None:
    options = secured.login("writer")
    login = options["sasl.jaas.config"].replace(PASSWORDS["writer"], "not-the-password")
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
    day = make_day(secured.mutual, secured.certificate("reader"))
    day.topics = {stream: name.replace(TAG, "other-") for stream, name in day.topics.items()}
    day.__post_init__()
    code, told = day.output("stream", "--available-now")
    assert code == 3
    assert "other-" in told
