"""Mended rows: what is wrong with a file is said by line and column before anything is sent."""

from __future__ import annotations

import base64
import json
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from spillway import mended
from spillway.cli import main
from spillway.decode import compile_streams
from spillway.mended import (
    LineProblem,
    Mended,
    ReplayFailed,
    contract_problems,
    read_mended,
    topic_problems,
)
from spillway_schemas.query import load_query

GOOD = '{"symbol": "A", "ts": "2026-01-05T14:30:00Z", "shares": 7}'


def line(value: object = GOOD, topic: object = "volume", **more: object) -> str:
    return json.dumps({"topic": topic, "value": value, **more})


def problems(*lines: str) -> list[LineProblem]:
    rows, found = read_mended("\n".join(lines).encode())
    return found + contract_problems(rows, compile_streams(load_query("symbol")))


def test_a_good_file_gives_its_rows_in_order() -> None:
    encoded = base64.b64encode(b"\xff").decode()
    second = '  {"topic": "stock", "value_base64": "' + encoded + '"}\r'
    text = "\n".join([line(), "", second, line("\u2028x")])
    rows, found = read_mended(b"\xef\xbb\xbf" + text.encode())
    assert found == []
    assert rows == [
        Mended(1, 21, "volume", GOOD.encode()),
        Mended(3, 22, "stock", b"\xff"),
        Mended(4, 21, "volume", "\u2028x".encode()),
    ]


def test_a_character_that_some_call_a_line_break_breaks_no_line() -> None:
    rows, found = read_mended('{"topic": "a", "value": "x\u2028y\u0085z"}'.encode())
    assert (rows, found) == ([Mended(1, 16, "a", "x\u2028y\u0085z".encode())], [])


@pytest.mark.parametrize(
    ("bad", "column", "reason"),
    [
        ('{"topic": "volume", "value" "x"}', 29, "not JSON: Expecting ':' delimiter"),
        ("[1]", 1, "a JSON object is needed"),
        ('{"value": "x"}', 1, "topic: the name of a topic is needed"),
        (line(topic=7), 2, "topic: the name of a topic is needed"),
        ('{"topic": "volume"}', 1, "either value or value_base64 is needed; there is none"),
        (line(value_base64=""), 21, "either value or value_base64 is needed; both are there"),
        (line(reason="ts: late by 2.500 s: the watermark has passed it"), 102, "Remove the line"),
        (line(None), 21, "value: null. A tombstone has nothing to mend: remove the line"),
        (line({"symbol": "A"}), 21, "value: text is needed"),
        ('{"topic": "volume", "value": "\\ud83d"}', 21, "half of a character (\\ud83d)"),
        ('{"topic": "volume", "value_base64": "x"}', 21, "value_base64: not base64"),
        ("[" * 100_000, 1, "not JSON that can be read"),
        (line(topic="volum"), 1, "topic 'volum' is not one of the query's; they are: review, st"),
        (line('{"symbol": "A", "shares": 7}'), 21, "still wrong: ts: missing"),
        (line(GOOD.replace("7", '"7"')), 21, "still wrong: shares: a whole number is needed"),
        (line("{"), 21, "still wrong: not JSON: "),
    ],
)
def test_a_bad_line_is_named_with_column_and_reason(bad: str, column: int, reason: str) -> None:
    [found] = problems(line(), bad, line())
    assert (found.line, found.column) == (2, column)
    assert reason in found.reason


def test_bytes_that_are_no_utf8_are_named() -> None:
    _, [found] = read_mended(line().encode() + b'\n{"topic": "caf\xe9"}')
    assert found == LineProblem(2, 15, "not UTF-8: save the file as UTF-8")


class View:
    """A cluster of which one topic takes small records."""

    def existing_topics(self) -> list[str]:
        return ["small", "other"]

    def topic_configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        return {name: {"max.message.bytes": "200" if name == "small" else "900"} for name in names}


def test_topics_that_are_missing_and_records_that_are_too_large_are_named() -> None:
    view: Any = View()
    rows = [
        Mended(1, 5, "small", b"x" * 80),
        Mended(2, 5, "small", b"x" * 200),
        Mended(3, 5, "gone", b"x"),
        Mended(4, 5, "other", b"x" * 600),
    ]
    first, second = topic_problems(view, rows, 1_000)
    assert (first.line, first.column) == (2, 5)
    assert "topic 'small' takes 200" in first.reason
    assert second == LineProblem(3, 1, "there is no topic 'gone'")
    assert [each.line for each in topic_problems(view, rows, 500)] == [2, 3, 4]


def refused(capsys: pytest.CaptureFixture[str], path: Path) -> str:
    with pytest.raises(SystemExit) as it:
        main(["--set", "kafka.bootstrap_servers=127.0.0.1:1", "quarantine", "replay", str(path)])
    assert it.value.code == 2
    return capsys.readouterr().err


def test_every_bad_line_is_told_at_once_and_kafka_is_not_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mended, "cluster", lambda *_: pytest.fail("nothing may be asked"))
    file = tmp_path / "bad.jsonl"
    file.write_text("\n".join([line("x"), "{", *[line(None)] * 11]))
    said = refused(capsys, file)
    assert f"{file}, line 1, column 21: still wrong: not JSON" in said
    assert f"{file}, line 2, column 2: not JSON: Expecting property name" in said
    assert f"{file}, line 10, column 21: value: null" in said
    assert "line 11" not in said
    assert said.endswith("... and 3 more\nNothing was sent: mend these lines or remove them\n")


def test_no_file_and_an_empty_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, tmp_path / "gone.jsonl")
    assert "gone.jsonl cannot be read: No such file or directory" in said
    (tmp_path / "empty.jsonl").write_text("\n")
    assert "has no rows, so there is nothing to send" in refused(capsys, tmp_path / "empty.jsonl")


# --- the transaction -----------------------------------------------------------------------------


class Producer:
    """kafka-python's producer: what it is asked for, and what fails."""

    asked: list[str]
    fails: dict[str, BaseException]

    def __init__(self, **options: Any) -> None:
        assert options["transactional_id"] == "spillway-replay-f00d"
        Producer.asked = []

    def _do(self, what: str) -> None:
        Producer.asked.append(what)
        if what in Producer.fails:
            raise Producer.fails[what]

    def init_transactions(self) -> None:
        self._do("init")

    def begin_transaction(self) -> None:
        self._do("begin")

    def send(self, topic: str, value: bytes) -> Any:
        self._do(f"send {topic} {value!r}")
        return SimpleNamespace(get=lambda timeout: self._do(f"wait {value!r}"))

    def abort_transaction(self) -> None:
        self._do("abort")

    def commit_transaction(self) -> None:
        self._do("commit")

    def close(self, timeout: int) -> None:
        self._do(f"close {timeout}")


SENT = ["init", "begin", "send t b'1'", "send t b'2'", "wait b'1'", "wait b'2'"]


@pytest.mark.parametrize(
    ("fails", "error", "asked", "says"),
    [
        ({}, None, [*SENT, "commit"], ""),
        (
            {"init": KafkaTimeoutError("late")},
            ReplayFailed,
            ["init"],
            "began no transaction (KafkaTimeoutError: late). Nothing was sent: see that the "
            "cluster takes transactions",
        ),
        (
            {"wait b'2'": KafkaTimeoutError("late")},
            ReplayFailed,
            [*SENT, "abort"],
            "line 2: KafkaTimeoutError: late). Nothing was sent: send the file again",
        ),
        (
            {"wait b'1'": KafkaTimeoutError("late"), "abort": KafkaTimeoutError("gone")},
            ReplayFailed,
            [*SENT[:-1], "abort"],
            "line 1: KafkaTimeoutError: late). Nothing was sent",
        ),
        ({"wait b'2'": KeyboardInterrupt()}, KeyboardInterrupt, [*SENT, "abort"], ""),
        (
            {"commit": KafkaTimeoutError("late")},
            ReplayFailed,
            [*SENT, "commit"],
            "did not say whether it has the 2 rows (KafkaTimeoutError: late). It has all or none",
        ),
    ],
)
def test_rows_are_committed_once_all_are_acknowledged_and_else_taken_back(
    fails: dict[str, BaseException],
    error: type[BaseException] | None,
    asked: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafka.KafkaProducer", Producer)
    Producer.fails = fails
    rows = [Mended(1, 1, "t", b"1"), Mended(2, 1, "t", b"2")]
    with pytest.raises(error) if error else nullcontext() as it:
        mended._send("b:1", {}, {}, rows, "f00d")
    assert Producer.asked == [*asked, "close 0"]
    assert says in (str(it.value) if it is not None else "")


def test_an_end_that_does_not_come_is_not_waited_for() -> None:
    forever = threading.Event()
    with pytest.raises(KafkaTimeoutError, match="no answer within 0 s"):
        mended._within(forever.wait, 0.01)
    forever.set()
