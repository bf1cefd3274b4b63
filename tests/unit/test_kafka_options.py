"""`kafka.options`: one table of Java names, for Spark and for kafka-python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kafka
import pytest
from kafka.errors import KafkaTimeoutError

from spillway.kafka import backlog, reading
from spillway.kafka.backlog import BacklogReader
from spillway.kafka.client import KafkaUnavailable
from spillway.kafka.last import last_committed
from spillway.kafka.options import OptionError, check_files, python_options
from spillway.kafka.reading import TopicReader
from spillway_schemas.secret import Options


@pytest.mark.parametrize(
    ("name", "value", "role", "wanted"),
    [
        ("fetch.max.wait.ms", "20", "consumer", {"fetch_max_wait_ms": 20}),
        ("fetch.max.wait.ms", "20", "producer", {}),
        ("receive.buffer.bytes", "65536", "consumer", {"receive_buffer_bytes": 65536}),
        ("client.id", "7", "admin", {"client_id": "7"}),
        ("acks", "all", "producer", {"acks": "all"}),
        ("compression.type", "zstd", "producer", {"compression_type": "zstd"}),
        ("check.crcs", "false", "consumer", {"check_crcs": False}),
        ("send.buffer.bytes", "131072", "producer", {"send_buffer_bytes": 131072}),
        ("security.protocol", "SASL_SSL", "admin", {"security_protocol": "SASL_SSL"}),
        ("sasl.mechanism", "SCRAM-SHA-512", "admin", {"sasl_mechanism": "SCRAM-SHA-512"}),
        ("ssl.endpoint.identification.algorithm", "", "admin", {"ssl_check_hostname": False}),
        ("ssl.endpoint.identification.algorithm", "https", "admin", {"ssl_check_hostname": True}),
        ("partition.assignment.strategy.of.the.java.client", "x", "consumer", {}),
    ],
)
def test_names_and_types_are_kafka_pythons(name, value, role, wanted):
    assert python_options({name: value}, role) == wanted


def test_jaas_gives_user_and_password():
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="ann" password="p\'; w=1";'
    )
    assert python_options({"sasl.jaas.config": jaas}, "admin") == {
        "sasl_plain_username": "ann",
        "sasl_plain_password": "p'; w=1",
    }


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r'"pass\"word9"', 'pass"word9'),
        (r"'it\'s'", "it's"),
        (r'"a\\b"', r"a\b"),
        (r'"tab\there"', "tab\there"),
        (r'"\101\60\377"', "A0\xff"),
        (r'"\4777"', "'77"),
        (r"bare\n", r"bare\n"),
    ],
)
def test_escapes_are_java_s(written: str, meant: str) -> None:
    jaas = f"x.PlainLoginModule required username=ann password={written};"
    assert python_options({"sasl.jaas.config": jaas}, "admin")["sasl_plain_password"] == meant


def test_pem_stores_are_files():
    options = {
        "ssl.truststore.location": "/ca.pem",
        "ssl.truststore.type": "PEM",
        "ssl.keystore.location": "/me.pem",
        "ssl.keystore.type": "PEM",
        "ssl.key.password": "secret",
    }
    assert python_options(options, "consumer") == {
        "ssl_cafile": "/ca.pem",
        "ssl_certfile": "/me.pem",
        "ssl_keyfile": "/me.pem",
        "ssl_password": "secret",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fetch.max.wait.ms": "soon"}, "fetch.max.wait.ms must be a number"),
        ({"check.crcs": "maybe"}, "check.crcs must be true or false"),
        ({"sasl.login.callback.handler.class": "X"}, "has no counterpart in kafka-python"),
        ({"ssl.truststore.location": "/ca.jks"}, "is no PEM store"),
        ({"sasl.jaas.config": "Krb5LoginModule required;"}, "needs username and password"),
    ],
)
def test_what_cannot_be_translated_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        python_options(options, "consumer")


def test_acks_are_all_or_a_number():
    assert python_options({"acks": "1"}, "producer") == {"acks": 1}
    with pytest.raises(OptionError, match="acks must be a number"):
        python_options({"acks": "one"}, "producer")


@pytest.mark.parametrize("name", ["ssl.truststore.location", "ssl.keystore.location"])
def test_a_folder_is_no_store(name, tmp_path):
    with pytest.raises(OptionError, match=f"{name} = .* is a folder: name the PEM file"):
        check_files({name: str(tmp_path)})


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(lambda given: last_committed("h:1", given, "t", 0), id="last"),
        pytest.param(lambda given: BacklogReader("h:1", given).look({"t": [0]}), id="backlog"),
        pytest.param(lambda given: TopicReader("h:1", given), id="reader"),
    ],
)
def test_no_option_lets_messages_count_that_were_not_committed(
    monkeypatch: pytest.MonkeyPatch, look: Callable[[Options], object]
) -> None:
    """The position of a transaction that was given up would have a relay pass over its rows."""
    asked: list[dict[str, Any]] = []

    class Consumer:
        DEFAULT_CONFIG = kafka.KafkaConsumer.DEFAULT_CONFIG

        def __init__(self, **config: Any) -> None:
            asked.append(config)
            raise KafkaTimeoutError

    monkeypatch.setattr(kafka, "KafkaConsumer", Consumer)
    monkeypatch.setattr(reading, "KafkaConsumer", Consumer)
    monkeypatch.setattr(backlog, "demand_listener", lambda *_: None)
    given: Options = {"isolation.level": "read_uncommitted", "enable.auto.commit": "true"}
    with pytest.raises(KafkaUnavailable):
        look(given)
    [config] = asked
    assert config["isolation_level"] == "read_committed"
    assert config["enable_auto_commit"] is False
