"""The doctor at a real broker: a healthy day, an absent topic, a compacted one; topics are made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spillway.cli import main
from spillway.doctor import blocking, check_all
from spillway.kafka.client import TopicProblem
from spillway.topics import look
from spillway_schemas.query import load_query
from spillway_schemas.settings import load_settings

pytestmark = pytest.mark.server


def query_over(path: Path, names: dict[str, str]) -> Path:
    streams = "".join(
        f'[streams.{name}]\nschema = "{name}"\ntopic = "{topic}"\n' for name, topic in names.items()
    )
    inputs = ", ".join(f'"{name}"' for name in names)
    path.write_text(f'{streams}[join]\ninputs = [{inputs}]\non = ["symbol"]\n')
    return path


def test_topics_are_looked_at(broker, topics, tmp_path):
    def found(names: dict[str, str]) -> dict[str, str]:
        flags = {
            "kafka.bootstrap_servers": broker,
            "warehouse.root": str(tmp_path / "warehouse"),
            "state.root": str(tmp_path / "state"),
            "state.budget_bytes": "16MiB",
            "query": str(query_over(tmp_path / "query.toml", names)),
        }
        checks = check_all(load_settings(None, flags, environ={})[0])
        return {check.name: check.what for check in blocking(checks)}

    good = topics("stock", "volume", "review")
    assert found(good) == {}
    (compacted,) = topics("review", configs={"cleanup.policy": "compact"}).values()
    failures = found(good | {"review": compacted})
    assert list(failures) == [f"topic {compacted}"]
    assert "compaction removes rows" in failures[f"topic {compacted}"]
    (short,) = topics("review", configs={"retention.ms": "3600000"}).values()
    assert "rows are kept for 1.0 hours" in found(good | {"review": short})[f"topic {short}"]
    assert found(good | {"review": "gone"})["topics"] == f"no topic 'gone' on {broker}"


@pytest.mark.parametrize(("command", "code"), [("doctor", 3), ("topics", 3), ("stream", 3)])
def test_a_topic_that_does_not_exist_has_one_remedy(
    command, code, broker, topics, tmp_path, monkeypatch, capsys
):
    names = topics("stock", "volume") | {"review": "gone"}
    monkeypatch.setenv("TERM", "dumb")
    flags = {
        "kafka.bootstrap_servers": broker,
        "warehouse.root": str(tmp_path / "warehouse"),
        "state.root": str(tmp_path / "state"),
        "state.budget_bytes": "16MiB",
        "query": str(query_over(tmp_path / "query.toml", names)),
    }
    more = ["--session", "2026-01-05"] if command == "stream" else []
    with pytest.raises(SystemExit) as it:
        main([*(f"--set={name}={value}" for name, value in flags.items()), command, *more])
    said = capsys.readouterr()
    # A dumb terminal has 80 columns, whatever COLUMNS says.
    text = " ".join((said.out + said.err).split())
    assert it.value.code == code
    assert re.search(rf"no topic '?gone'? on {broker}", text), text
    assert text.count("run 'spillway topics --create'") == 1, text
    assert text.count("name another one in the query") == 1, text


def test_missing_topics_are_made(broker, cluster, topics, tmp_path):
    names = topics("stock", "volume", partitions=2)
    (gone,) = topics("review").values()
    cluster.delete_topics([gone])
    flags = {
        "kafka.bootstrap_servers": broker,
        "kafka.partitions": 3,
        "query": str(query_over(tmp_path / "query.toml", names | {"review": gone})),
    }

    def found(*, create: bool, **more: object) -> dict[str, int | None]:
        settings = load_settings(None, flags | more, environ={})[0]
        seen = look(settings, load_query(settings.query), None, create=create)
        return {each.topic: each.partitions for each in seen}

    there = dict.fromkeys(names.values(), 2)
    assert found(create=False) == there | {gone: None}
    with pytest.raises(TopicProblem, match="eplication"):
        found(create=True, **{"kafka.replication": 3})
    assert found(create=True) == there | {gone: 3}
    assert found(create=True, **{"kafka.partitions": 5}) == there | {gone: 3}
