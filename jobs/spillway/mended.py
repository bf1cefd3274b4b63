"""Mended rows: the whole file is checked, then sent in one Kafka transaction.

What the check cannot foresee (a broker that goes away, a host that dies) must not leave a part of
the file in the topics, since a repeat would then double it. The transaction is committed once
every row is acknowledged; before that its rows are rows of nobody, because the stream and `verify`
read what is committed only. Its id is made of the file's content: a repeat of a try that died
aborts what that one left open, and of two tries at a time one is refused.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from spillway.decode import StreamPlan, compile_streams, decode
from spillway.decode.reasons import LATE, kind_of
from spillway.kafka.client import KafkaCluster, KafkaUnavailable, cluster, demand_listener, told
from spillway.kafka.options import python_options
from spillway.kafka.patience import within as _within
from spillway.registry import with_schemas
from spillway_schemas.exits import USAGE
from spillway_schemas.query import Query
from spillway_schemas.secret import Options
from spillway_schemas.settings import Settings

SHOWN = 10
"""Problems that a refusal names; the rest is counted."""
TIMEOUT_S = 60.0
"""How long a row may take to be acknowledged."""
ABORT_S = 10.0
MAX_REQUEST_BYTES = 16 << 20
TOO_LATE = (
    "this row came too late, and no mend makes it earlier: sent again it would be late again, or "
    "join rows of a later session. Remove the line"
)


class ReplayRefused(ValueError):
    """The file cannot be sent as it is; a line for each problem. Nothing was sent."""

    exit_code = USAGE


class ReplayFailed(RuntimeError):
    """Kafka did not take the rows; the message says whether it may have them all the same."""


@dataclass(frozen=True)
class Mended:
    """One line of the file."""

    line: int
    column: int
    """Where the line's value begins, from 1."""
    topic: str
    value: bytes


@dataclass(frozen=True)
class LineProblem:
    """Why one line cannot be sent."""

    line: int
    column: int
    reason: str


def replay_rows(settings: Settings, query: Query, path: Path) -> int:
    """Send the rows of a file to their topics, all or none; how many there were.

    Raises `ReplayRefused` before anything is sent, `ReplayFailed`, `KafkaUnavailable`,
    `TopicProblem` when the cluster refuses to be asked, and `OptionError`.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ReplayRefused(f"{path} cannot be read: {error.strerror}") from None
    rows, problems = read_mended(text)
    plans = with_schemas(compile_streams(query), settings.registry, None)
    problems += contract_problems(rows, plans)
    _refuse(path, problems)
    if not rows:
        raise ReplayRefused(f"{path} has no rows, so there is nothing to send")
    given = python_options(settings.kafka.options, "producer")
    options = {"max_request_size": MAX_REQUEST_BYTES, **given}
    demand_listener(settings.kafka.bootstrap_servers)
    with cluster(settings.kafka.bootstrap_servers, settings.kafka.options) as view:
        _refuse(path, topic_problems(view, rows, int(options["max_request_size"])))
    name = hashlib.sha256(text).hexdigest()[:16]
    _send(settings.kafka.bootstrap_servers, options, settings.kafka.options, rows, name)
    return len(rows)


def _refuse(path: Path, problems: Sequence[LineProblem]) -> None:
    if not problems:
        return
    ordered = sorted(problems, key=lambda each: each.line)
    lines = [f"{path}, line {p.line}, column {p.column}: {p.reason}" for p in ordered[:SHOWN]]
    if (more := len(ordered) - SHOWN) > 0:
        lines.append(f"... and {more:,} more")
    raise ReplayRefused("\n".join([*lines, "Nothing was sent: mend these lines or remove them"]))


# ------------------------------------------------------------------------------------ the file


def read_mended(text: bytes) -> tuple[list[Mended], list[LineProblem]]:
    """The rows of a file's bytes, and what is wrong with the lines that are none."""
    rows: list[Mended] = []
    problems: list[LineProblem] = []
    # Bytes, not text: text also breaks at characters that JSON allows inside its strings.
    for number, line in enumerate(text.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if line.strip():
            found = _read_line(number, line)
            (rows if isinstance(found, Mended) else problems).append(found)  # type: ignore[arg-type]
    return rows, problems


def _read_line(number: int, line: bytes) -> Mended | LineProblem:
    try:
        text = line.decode()
        row = json.loads(text)
    except UnicodeDecodeError as error:
        return LineProblem(number, error.start + 1, "not UTF-8: save the file as UTF-8")
    except json.JSONDecodeError as error:
        return LineProblem(number, error.colno, f"not JSON: {error.msg}")
    except (ValueError, RecursionError) as error:  # digits or brackets without end
        return LineProblem(number, 1, f"not JSON that can be read: {error}")
    if not isinstance(row, dict):
        return LineProblem(
            number, 1, "a JSON object is needed, as 'quarantine list --json' prints it"
        )

    def wrong(key: str, reason: str) -> LineProblem:
        return LineProblem(number, _column(text, key), reason)

    topic = row.get("topic")
    if not isinstance(topic, str) or not topic:
        return wrong("topic", "topic: the name of a topic is needed")
    if isinstance(said := row.get("reason"), str) and kind_of(said) == LATE:
        return wrong("reason", TOO_LATE)
    names = [name for name in ("value", "value_base64") if name in row]
    if len(names) != 1:
        found = "both are there" if names else "there is none"
        return wrong("value", f"either value or value_base64 is needed; {found}")
    [name] = names
    value = row[name]
    if value is None:
        return wrong(name, f"{name}: null. A tombstone has nothing to mend: remove the line")
    if not isinstance(value, str):
        return wrong(name, f'{name}: text is needed: the message in quotes, its own quotes as \\"')
    try:
        sent = value.encode() if name == "value" else base64.b64decode(value, validate=True)
    except UnicodeEncodeError as error:
        lone = f"\\u{ord(value[error.start]):04x}"
        return wrong(name, f"value: half of a character ({lone}) cannot be sent as UTF-8")
    except ValueError as error:
        return wrong(name, f"value_base64: not base64: {error}")
    return Mended(number, _column(text, name), topic, sent)


def _column(text: str, key: str) -> int:
    """Where a key stands in its line, from 1; 1 when it is not there."""
    found = re.search(rf'"{key}"\s*:', text)
    return found.start() + 1 if found else 1


def contract_problems(rows: Sequence[Mended], plans: Iterable[StreamPlan]) -> list[LineProblem]:
    """Rows that the stream would only quarantine again, and those of topics that it does not read.

    The verdict is the stream's own (`spillway.decode`).
    """
    by_topic = {plan.topic: plan for plan in plans}
    listed = ", ".join(sorted(by_topic))
    problems = [
        LineProblem(
            row.line, 1, f"topic {row.topic!r} is not one of the query's; they are: {listed}"
        )
        for row in rows
        if row.topic not in by_topic
    ]
    for topic, plan in by_topic.items():
        mine = [row for row in rows if row.topic == topic]
        if mine:
            decoded = decode(plan, pa.array([row.value for row in mine], pa.large_binary()))
            for at, reason in zip(decoded.rejected.tolist(), decoded.reasons, strict=True):
                problems.append(
                    LineProblem(mine[at].line, mine[at].column, f"still wrong: {reason}")
                )
    return problems


# --------------------------------------------------------------------------------------- Kafka


def topic_problems(
    view: KafkaCluster, rows: Sequence[Mended], max_request: int
) -> list[LineProblem]:
    """Rows whose topic does not exist, or that are larger than it takes."""
    from kafka.record.default_records import DefaultRecordBatchBuilder as Builder

    wanted = {row.topic for row in rows}
    there = sorted(wanted & set(view.existing_topics()))
    limits = {
        name: min(int(config.get("max.message.bytes", max_request)), max_request)
        for name, config in (view.topic_configs(there) if there else {}).items()
    }
    problems = []
    for row in rows:
        size = Builder.estimate_size_in_bytes(None, row.value, [])
        if row.topic not in limits:
            problems.append(LineProblem(row.line, 1, f"there is no topic {row.topic!r}"))
        elif size > limits[row.topic]:
            problems.append(
                LineProblem(
                    row.line,
                    row.column,
                    f"a record of {size:,} bytes; topic {row.topic!r} takes {limits[row.topic]:,} "
                    "(the least of its max.message.bytes and the producer's max.request.size)",
                )
            )
    return problems


def _send(
    bootstrap: str, options: dict[str, Any], secrets: Options, rows: Sequence[Mended], name: str
) -> None:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    try:
        producer = KafkaProducer(
            **options,
            bootstrap_servers=bootstrap.split(","),
            transactional_id=f"spillway-replay-{name}",
            allow_auto_create_topics=False,
        )
    except (KafkaError, OSError) as error:
        said = told(error, secrets)
        raise KafkaUnavailable(
            f"Kafka at {bootstrap} does not answer ({said}). Nothing was sent"
        ) from error
    try:
        try:
            _within(producer.init_transactions)
        except (KafkaError, OSError) as error:
            raise ReplayFailed(
                f"Kafka began no transaction ({told(error, secrets)}). Nothing was sent: see that "
                "the cluster takes transactions, and lets this user write under the transactional "
                "id 'spillway-replay-*'"
            ) from error
        try:
            producer.begin_transaction()
            sent = [producer.send(row.topic, row.value) for row in rows]
            for row, future in zip(rows, sent, strict=True):
                _acknowledged(row, future)
        except BaseException as error:
            # Without it the broker aborts by itself, after a minute in which the stream waits.
            with contextlib.suppress(KafkaError):
                _within(producer.abort_transaction, ABORT_S)
            if not isinstance(error, KafkaError | OSError):
                raise
            said = told(error, secrets)
            raise ReplayFailed(
                f"Kafka did not take the rows ({said}). Nothing was sent: send the file again"
            ) from error
        try:
            _within(producer.commit_transaction)
        except (KafkaError, OSError) as error:
            said = told(error, secrets)
            raise ReplayFailed(
                f"Kafka did not say whether it has the {len(rows):,} rows ({said}). It has "
                "all or none: see in 'spillway status' whether 'rows in' has grown by them before "
                "you send the file again"
            ) from error
    finally:
        producer.close(timeout=0)


def _acknowledged(row: Mended, future: Any) -> None:
    """Wait for it. Raises KafkaError that names the line."""
    from kafka.errors import KafkaError

    try:
        future.get(timeout=TIMEOUT_S)
    except KafkaError as error:
        raise KafkaError(f"line {row.line}: {error}") from error
