"""Mended rows: what is wrong with a file is said by line and column before anything is sent."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from jobs import mended
from jobs.cli import main
from jobs.decode import compile_streams
from jobs.mended import Mended, Problem, contract_problems, read_mended, topic_problems
from schemas.query import load_query

GOOD = '{"symbol": "A", "ts": "2026-01-05T14:30:00Z", "shares": 7}'


def line(value: object = GOOD, topic: object = "volume", **more: object) -> str:
    return json.dumps({"topic": topic, "value": value, **more})


def problems(*lines: str) -> list[Problem]:
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
    assert found == Problem(2, 15, "not UTF-8: save the file as UTF-8")


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
    assert second == Problem(3, 1, "there is no topic 'gone'")
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
