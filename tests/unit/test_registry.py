"""What ids mean: asked for once, kept for good, and the same whoever asks when."""

from __future__ import annotations

import contextlib
import itertools
import json
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st
from pydantic import SecretStr

from spillway.registry import client as client_module
from spillway.registry import known
from spillway.registry.client import (
    DamagedSchema,
    NotThere,
    RegistryClient,
    RegistryRefuses,
    RegistryUnavailable,
    SchemaTrouble,
)
from spillway.registry.known import KnownSchemas
from spillway.storage import folder
from spillway.storage.local import LocalFolder
from spillway_schemas.formats import Absence, WriterSchema
from tests.lanes import explored
from tests.registry import StandIn

TEXT = '{"type":"record","name":"R","fields":[{"name":"a","type":"long"}]}'
OTHER = '{"type":"record","name":"R","fields":[]}'


@pytest.fixture
def registry() -> Iterator[StandIn]:
    with StandIn() as found:
        yield found


def client(registry: StandIn, wait_s: float = 0.0, **options: str) -> RegistryClient:
    given = {name.replace("_", "."): SecretStr(value) for name, value in options.items()}
    return RegistryClient(registry.url, given, wait_s=wait_s, sleep=lambda _: None)


def at(*kafka_ms: int) -> npt.NDArray[np.int64]:
    return np.array(kafka_ms, np.int64)


def keeper(registry: StandIn, place: Path, now_ms: int = 1_000) -> KnownSchemas:
    return KnownSchemas(client(registry), folder(str(place)), lambda: now_ms)


# ---------------------------------------------------------------------------------- the client


def test_a_schema_comes_with_all_that_it_refers_to(registry: StandIn) -> None:
    registry.register("base", TEXT)
    refers = [{"name": "Base", "subject": "base", "version": 1}]
    registry.register("middle", OTHER, references=refers)
    refers = [
        {"name": "Middle", "subject": "middle", "version": 1},
        {"name": "Base", "subject": "base", "version": 1},
    ]
    number = registry.register("top", '"x"', references=refers)
    found = client(registry).schema(number)
    assert found.references == (("Base", TEXT), ("Middle", OTHER))
    assert (found.id, found.kind, found.text) == (number, "AVRO", '"x"')


def test_protobuf_is_asked_for_serialized(registry: StandIn) -> None:
    number = registry.register("s", "CgE=", "PROTOBUF")
    found = client(registry).schema(number)
    assert (found.kind, found.text) == ("PROTOBUF", "CgE=")


PROTO = 'syntax = "proto3";\nmessage M { string symbol = 1; }\n'


def test_text_is_compiled_where_it_cannot_be_had_serialized(registry: StandIn) -> None:
    number = registry.register("s", PROTO, "PROTOBUF")
    wanted = client(registry).schema(number)
    assert wanted.text != PROTO
    registry.serializes = 500
    registry.asked.clear()
    assert client(registry, wait_s=1.0).schema(number) == wanted
    assert registry.asked.total() == 2  # it is not asked again
    assert client(registry).latest("s") == wanted


def test_serialized_text_needs_no_second_question(registry: StandIn) -> None:
    number = registry.register("s", PROTO, "PROTOBUF")
    text = client(registry).schema(number).text
    registry.asked.clear()
    registry.faults = [json.dumps({"schema": text, "schemaType": "PROTOBUF"})]
    assert client(registry).schema(number).text == text
    assert registry.asked.total() == 1


def test_text_that_cannot_be_compiled_is_no_verdict_where_the_registry_fails(
    registry: StandIn,
) -> None:
    number = registry.register("s", 'syntax = "proto3";\nmessage {', "PROTOBUF")
    registry.serializes = 500
    with pytest.raises(RegistryUnavailable, match="HTTP 500, it cannot be serialized"):
        client(registry, wait_s=1.0).schema(number)
    registry.serializes = False
    assert client(registry).schema(number).text == 'syntax = "proto3";\nmessage {'
    number = registry.register("s", 'syntax = "proto3"; // \ud800', "PROTOBUF")
    assert client(registry).schema(number).kind == "PROTOBUF"


def test_a_registry_that_is_away_does_not_serialize_later(registry: StandIn) -> None:
    number = registry.register("s", PROTO, "PROTOBUF")
    wanted = client(registry).schema(number)
    plain = json.dumps({"schema": PROTO, "schemaType": "PROTOBUF"})
    registry.faults = [plain, 503, 429]
    assert client(registry, wait_s=60.0).schema(number) == wanted
    assert not registry.faults
    registry.faults = [plain, 401]
    with pytest.raises(RegistryRefuses, match="does not know this user"):
        client(registry).schema(number)


@pytest.mark.parametrize("fails", ["not there", "no program"])
def test_a_compiler_that_fails_is_no_verdict(
    registry: StandIn, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = registry.register("s", PROTO, "PROTOBUF")
    registry.serializes = False
    if fails == "not there":
        monkeypatch.setitem(sys.modules, "grpc_tools.protoc", None)
        told = "a .proto file needs its compiler: pip install"
    else:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        told = "Protobuf's compiler fails: it ended with 1"
    with pytest.raises(RegistryRefuses, match=f"cannot be compiled here: {told}"):
        client(registry).schema(number)


def test_a_schema_that_is_refused_is_said(registry: StandIn) -> None:
    registry.faults = [409]
    with pytest.raises(
        RegistryRefuses, match=r"HTTP 409, a fault\. The new schema of s-value is not"
    ):
        client(registry, wait_s=60.0).register("s-value", "AVRO", TEXT)
    registry.faults = [422]
    with pytest.raises(RegistryRefuses, match=r"HTTP 422, a fault$"):
        client(registry).register("s-value", "AVRO", TEXT)
    assert not registry.schemas


@pytest.mark.parametrize("status", [429, 500, 503, "hang up"])
def test_a_registry_that_is_away_is_asked_again(registry: StandIn, status: Any) -> None:
    number = registry.register("s", TEXT)
    registry.faults = [status, status]
    assert client(registry, wait_s=60.0).schema(number).text == TEXT
    registry.faults = [status] * 9
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        client(registry).schema(number)
    assert len(registry.faults) == 8


def test_the_wait_has_an_end(registry: StandIn) -> None:
    registry.away = True
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    asking = RegistryClient(registry.url, {}, wait_s=30.0, sleep=sleep, clock=lambda: now[0])
    with pytest.raises(RegistryUnavailable, match="HTTP 503"):
        asking.schema(1)
    assert now[0] == 30.0
    assert 8 < registry.asked.total() < 15


def test_another_registry_of_the_cluster_is_asked(registry: StandIn) -> None:
    number = registry.register("s", TEXT)
    asking = RegistryClient(f"http://127.0.0.1:1, {registry.url}/", {}, wait_s=0.0)
    assert asking.schema(number).text == TEXT


def test_nobody_there_is_away() -> None:
    with pytest.raises(RegistryUnavailable, match="Connection refused"):
        RegistryClient("http://127.0.0.1:1", {}, wait_s=0.0).schema(1)


def test_no_schema_is_an_answer(registry: StandIn) -> None:
    with pytest.raises(NotThere, match="the registry has no such schema"):
        client(registry).schema(7)
    registry.register("s", TEXT, references=[{"name": "B", "subject": "none", "version": 1}])
    with pytest.raises(NotThere, match="it refers to B, which the registry does not have"):
        client(registry).schema(1)


@pytest.mark.parametrize("shape", ["a chain", "side by side"])
def test_references_have_an_end(
    registry: StandIn, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MOST_REFERENCES", 3)
    refers: list[dict[str, Any]] = []
    numbers = []
    for n in range(5):
        numbers.append(registry.register(f"s{n}", f"[{n}]", references=list(refers)))
        refers = refers if shape == "side by side" else []
        refers.append({"name": f"N{n}", "subject": f"s{n}", "version": 1})
    assert [name for name, _ in client(registry).schema(numbers[3]).references] == [
        "N0",
        "N1",
        "N2",
    ]
    with pytest.raises(NotThere, match=r"it has over 3 references: register it with what it"):
        client(registry).schema(numbers[4])


def test_a_registry_that_refers_on_and_on_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def on_and_on(_: object, path: str, **__: Any) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        refers = {"name": f"N{asked}", "subject": "é\ud800", "version": 1}
        return {"schema": TEXT, "references": [refers]}

    monkeypatch.setattr(RegistryClient, "ask", on_and_on)
    with pytest.raises(NotThere, match="it has over 200 references"):
        RegistryClient("http://none", {}, wait_s=0.0).schema(1)
    assert asked == 201


def test_references_in_a_ring_are_no_schema(registry: StandIn) -> None:
    registry.register("a", TEXT, references=[{"name": "B", "subject": "b", "version": 1}])
    registry.register("b", OTHER, references=[{"name": "A", "subject": "a", "version": 1}])
    with pytest.raises(NotThere, match="its references have no end: B"):
        client(registry).schema(1)


@pytest.mark.parametrize("version", ["é", "1", "latest?x", "1 2", True, 1.0, None, [1]])
def test_the_version_of_a_reference_is_a_whole_number(registry: StandIn, version: Any) -> None:
    registry.register("base", OTHER)
    refers = [{"name": "Base", "subject": "base", "version": version}]
    number = registry.register("top", TEXT, references=refers)
    with pytest.raises(RegistryRefuses, match="whole number of a version: register the schema"):
        client(registry).schema(number)


def test_another_registry_may_serialize_what_one_cannot(registry: StandIn) -> None:
    """One cannot now, the other is away: both are asked again."""
    number = registry.register("s", PROTO, "PROTOBUF")
    wanted = client(registry).schema(number)
    registry.faults = [json.dumps({"schema": PROTO, "schemaType": "PROTOBUF"}), 500]
    asking = RegistryClient(
        f"{registry.url},http://127.0.0.1:1", {}, wait_s=60.0, sleep=lambda _: None
    )
    assert asking.schema(number) == wanted
    assert not registry.faults


def test_an_answer_of_as_many_bytes_as_are_read(
    registry: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = registry.register("s", TEXT)
    size = len(json.dumps({"schema": TEXT}))
    monkeypatch.setattr(client_module, "MOST_ANSWER_BYTES", size)
    assert client(registry).schema(number).text == TEXT
    monkeypatch.setattr(client_module, "MOST_ANSWER_BYTES", size - 1)
    with pytest.raises(RegistryUnavailable, match="its answer has over"):
        client(registry).schema(number)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (401, "does not know this user"),
        (403, "may not read schemas"),
        (404, "no registry is there"),  # of a proxy: no verdict on any message
        (422, "a fault"),
        (302, "HTTP 302"),
        ("<html>", "is no schema registry"),
        ("[]", "is no schema registry"),
        ('{"welcome":1}', "answers without what was asked for: welcome"),
    ],
)
def test_other_answers_are_no_verdicts(registry: StandIn, fault: Any, told: str) -> None:
    registry.faults = [fault]
    with pytest.raises(RegistryRefuses, match=told):
        client(registry, wait_s=60.0).schema(1)
    assert registry.asked.total() == 1


@pytest.fixture
def answering() -> Iterator[Callable[[Callable[[socket.socket], object]], str]]:
    """Servers that answer a connection as they are told; each one's address."""
    with contextlib.ExitStack() as servers:

        def serve(answer: Callable[[socket.socket], object]) -> str:
            server = servers.enter_context(socket.create_server(("127.0.0.1", 0)))

            def loop() -> None:
                with contextlib.suppress(OSError):  # the end of the test
                    while True:
                        with server.accept()[0] as connection:
                            connection.recv(10_000)
                            with contextlib.suppress(OSError):
                                answer(connection)

            threading.Thread(target=loop, daemon=True).start()
            return f"127.0.0.1:{server.getsockname()[1]}"

        yield serve


def test_a_server_that_goes_in_the_handshake_is_away(answering: Any) -> None:
    """As a load balancer does that is restarted: no authority is at fault."""
    address = answering(lambda _: None)
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        RegistryClient(f"https://{address}", {}, wait_s=0).schema(1)


def test_an_answer_in_drops_has_an_end(answering: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "REGISTRY_ANSWER_S", 0.3)

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(60):
            connection.sendall(b" ")
            time.sleep(0.05)

    began = time.monotonic()
    with pytest.raises(RegistryUnavailable, match="its answer takes over"):
        RegistryClient(f"http://{answering(drip)}", {}, wait_s=0).schema(1)
    assert time.monotonic() - began < 2


def test_an_answer_without_end_is_not_read_to_it(
    answering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MOST_ANSWER_BYTES", 1 << 20)

    def flood(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(64):
            connection.sendall(b" " * (1 << 18))

    with pytest.raises(RegistryUnavailable, match="its answer has over 1 MiB"):
        RegistryClient(f"http://{answering(flood)}", {}, wait_s=0).schema(1)


@pytest.mark.parametrize(
    "body",
    [
        b'{"schema": "{}", "references": ["a"]}',
        b'{"schema": "{}", "references": 5}',
        b'{"schema": "{}", "references": [{"name": 1, "subject": "s", "version": 1}]}',
        b"[" * 100_000,
    ],
)
def test_an_odd_answer_is_said(answering: Any, body: bytes) -> None:
    said = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    address = answering(lambda connection: connection.sendall(said))
    with pytest.raises(
        RegistryRefuses, match=r"without what was asked for|no schema registry|without a name"
    ):
        RegistryClient(f"http://{address}", {}, wait_s=0).schema(1)


def test_a_login_is_sent_and_never_shown(registry: StandIn) -> None:
    registry.login = "desk:hunter22"
    number = registry.register("s", TEXT)
    assert client(registry, basic_auth_user_info="desk:hunter22").schema(number).text == TEXT
    with pytest.raises(RegistryRefuses) as caught:
        client(registry, basic_auth_user_info="desk:hunter23").schema(number)
    assert "hunter23" not in str(caught.value)
    registry.faults = [422]
    assert "hunter23" not in repr(client(registry, basic_auth_user_info="desk:hunter23").__dict__)


@pytest.mark.parametrize("before", [0, 140, 190, 199])
def test_what_a_registry_says_is_told_without_secrets(registry: StandIn, before: int) -> None:
    """Hidden first and then cut: a part of a secret would not be found."""
    registry.faults = [json.dumps({"-" * before + " hunter22hunter22": 1})]
    with pytest.raises(RegistryRefuses, match="answers without what was asked for") as caught:
        client(registry, basic_auth_user_info="desk:hunter22hunter22").schema(1)
    assert "hunter" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_no_url_says_what_to_set() -> None:
    with pytest.raises(RegistryRefuses, match=r"set registry\.url"):
        RegistryClient("", {}, wait_s=0.0).schema(1)


def test_a_file_of_authorities_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no")
    options = {"ssl.truststore.location": str(tmp_path / "ca.pem")}
    with pytest.raises(RegistryRefuses, match="PEM files are needed"):
        RegistryClient("https://127.0.0.1:1", options, wait_s=0.0).schema(1)


def test_troubles_are_known_by_a_jobs_text() -> None:
    text = "Job aborted\n  spillway.registry.client.RegistryUnavailable: nobody there\n at x"
    found = SchemaTrouble.told_by(RuntimeError(text))
    assert isinstance(found, RegistryUnavailable)
    assert str(found) == "nobody there"
    assert SchemaTrouble.told_by(RuntimeError("ValueError: other")) is None


# ------------------------------------------------------------------------------ what is known


def test_a_schema_is_asked_for_once_and_kept(registry: StandIn, tmp_path: Path) -> None:
    number = registry.register("s", TEXT)
    first = keeper(registry, tmp_path)
    assert first.resolve(number, at(5)).schema == client(registry).schema(number)
    registry.away = True
    for again in (
        first,
        keeper(registry, tmp_path),
        pickle.loads(pickle.dumps(_real(registry, tmp_path))),
    ):
        found = again.resolve(number, at(10**15))
        assert found.schema is not None
        assert found.schema.text == TEXT
        assert found.absence.until_ms < 0
    assert [each.id for each in keeper(registry, tmp_path).kept()] == [number]


def _real(registry: StandIn, place: Path) -> KnownSchemas:
    """One without a test's clock: it can be pickled."""
    return KnownSchemas(RegistryClient(registry.url, {}, wait_s=0.0), folder(str(place)))


def test_what_was_absent_stays_so_for_its_messages(registry: StandIn, tmp_path: Path) -> None:
    found = keeper(registry, tmp_path, now_ms=1_000).resolve(7, at(900))
    assert (found.schema, found.absence.until_ms) == (None, 1_000)
    registry.register("s", TEXT, schema_id=7)
    # Messages of then are judged as they were, later ones by the schema; by everybody alike.
    for later in (2_000, 3_000):
        found = keeper(registry, tmp_path, now_ms=later).resolve(7, at(1_001))
        assert (found.absence.until_ms, found.why) == (1_000, "the registry has no such schema")
        assert found.schema is not None
    registry.schemas.clear()
    assert keeper(registry, tmp_path).resolve(7, at(10**9)).schema is not None


def test_a_message_dated_ahead_is_absent_too(registry: StandIn, tmp_path: Path) -> None:
    for now_ms in (10, 20):
        found = keeper(registry, tmp_path, now_ms).resolve(7, at(5_000, 5_003, 5_001))
        assert found.absence == Absence(10, ((5_000, 5_001), (5_003, 5_003)))
    found = keeper(registry, tmp_path, now_ms=30).resolve(7, at(5_002))
    assert found.absence == Absence(30, ((5_000, 5_003),))
    assert registry.asked.total() == 2


@pytest.mark.parametrize("ahead_ms", [1_001, 2**62, 2**63 - 1])
def test_a_message_dated_ahead_says_nothing_of_later_ones(
    registry: StandIn, tmp_path: Path, ahead_ms: int
) -> None:
    """Nor those that share its batch."""
    asked = at(900, ahead_ms)
    assert keeper(registry, tmp_path, now_ms=1_000).resolve(7, asked).schema is None
    registry.register("s", TEXT, schema_id=7)
    fresh = keeper(registry, tmp_path, now_ms=10**6)
    found = fresh.resolve(7, at(ahead_ms - 1 if ahead_ms > 1_001 else 1_002))
    assert found.schema is not None
    for each in (fresh, keeper(registry, tmp_path, now_ms=10**6)):
        found = each.resolve(7, at(900, 1_000, 1_001, ahead_ms - 1, ahead_ms))
        absent = [True, True, ahead_ms == 1_001, ahead_ms == 1_001, True]
        assert (
            found.absence.covers(at(900, 1_000, 1_001, ahead_ms - 1, ahead_ms)).tolist() == absent
        )


def test_a_message_that_came_while_the_registry_answered_is_asked_for_again(
    registry: StandIn, tmp_path: Path
) -> None:
    """The answer is of the moment in which it was asked, or later."""
    now = iter([1_000, 2_000, 3_000])
    asking = KnownSchemas(client(registry), folder(str(tmp_path)), lambda: next(now))
    assert asking.resolve(7, at(900)).absence == Absence(1_000)
    registry.register("s", TEXT, schema_id=7)
    assert asking.resolve(7, at(1_001)).schema is not None


def test_a_worker_goes_by_the_time_that_it_was_given(
    registry: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own clock may be a day fast: an id that is registered meanwhile would be rejected."""
    day_ms = 86_400_000
    for hops, id_ in enumerate((7, 8), 1):
        copy = _real(registry, tmp_path)
        monkeypatch.setattr(time, "time_ns", lambda: 1_000 * 1_000_000)
        for _ in range(hops):  # a worker may hand it on
            copy = pickle.loads(pickle.dumps(copy))
            monkeypatch.setattr(time, "time_ns", lambda: (1_000 + day_ms) * 1_000_000)
        found = copy.resolve(id_, at(900, 1_001))
        assert found.absence == Absence(1_000, ((1_001, 1_001),))


def test_single_times_are_bounded(
    registry: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each id all are in memory, and read again by each worker."""
    monkeypatch.setattr(known, "MOST_RUNS", 3)
    asking = keeper(registry, tmp_path, now_ms=10)
    assert asking.resolve(7, at(100, 120, 200)).absence == Absence(
        10, ((100, 100), (120, 120), (200, 200))
    )
    bounded = Absence(10, ((100, 120), (200, 200), (2**63 - 1, 2**63 - 1)))
    assert asking.resolve(7, at(2**63 - 1)).absence == bounded
    registry.register("s", TEXT, schema_id=7)
    for each in (asking, keeper(registry, tmp_path, now_ms=500)):
        found = each.resolve(7, at(110, 121, 199, 300))
        assert found.absence == bounded
        assert found.schema is not None


GAPPED = st.lists(st.integers(-30, 30), min_size=1, max_size=12)


@explored(30, 1500, GAPPED, st.integers(1, 6), st.integers(-40, 30))
def test_an_absence_is_bounded_by_its_smallest_gaps(
    times: list[int], runs: int, until: int
) -> None:
    """Beside a search for the least that may be added."""
    whole = Absence.of(until, at(*times))
    bounded = whole.within(runs)
    assert len(bounded.ahead_ms) == min(len(whole.ahead_ms), runs)
    assert Absence.of(until, np.flatnonzero(bounded.covers(np.arange(-40, 40))) - 40) == bounded
    gaps = [b[0] - a[1] for a, b in itertools.pairwise(whole.ahead_ms)]
    added = sum(sorted(each - 1 for each in gaps)[: max(len(whole.ahead_ms) - runs, 0)])
    everywhere = np.arange(-40, 40)
    both = (whole.covers(everywhere), bounded.covers(everywhere))
    assert (both[0] <= both[1]).all()
    assert int(both[1].sum() - both[0].sum()) == added


def test_an_id_that_is_unknown_all_day_is_read_in_a_few_steps(
    registry: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a task that reads every file which the batches before it have left."""
    for number in range(200):
        now_ms = 1_000 * (number + 1)
        keeper(registry, tmp_path, now_ms).resolve(7, at(now_ms))
    assert len(list(tmp_path.glob("7-*.json"))) == 200
    steps = looked_at(monkeypatch)
    asked = registry.asked.total()
    found = keeper(registry, tmp_path).resolve(7, at(1, 150_000, 200_000))
    assert found.absence == Absence(200_000)
    assert registry.asked.total() == asked
    assert len(steps) <= 2 * 8 + 1
    assert steps[-1] == "7-199.json"


def test_an_id_with_a_schema_is_read_in_two_steps(
    registry: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task does so for each id. Kills: a look at the file that is read right after."""
    registry.register("s", TEXT, schema_id=7)
    keeper(registry, tmp_path).resolve(7, at(900))
    steps = looked_at(monkeypatch)
    keeper(registry, tmp_path).resolve(7, at(900))
    assert steps == ["7-1.json", "7-0.json"]


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that are looked at or read from now on."""
    steps: list[str] = []
    for name in ("size", "read"):
        was = getattr(LocalFolder, name)
        counted = lambda self, file, was=was: (steps.append(file), was(self, file))[1]  # noqa: E731
        monkeypatch.setattr(LocalFolder, name, counted)
    return steps


@pytest.mark.parametrize("there", range(20))
def test_the_newest_file_is_found(registry: StandIn, tmp_path: Path, there: int) -> None:
    for number in range(there):
        (tmp_path / f"7-{number}.json").touch()
    ours = keeper(registry, tmp_path)
    assert [ours._files(7, before) for before in range(there + 1)] == [there] * (there + 1)


def test_the_newest_file_says_what_those_before_it_said(registry: StandIn, tmp_path: Path) -> None:
    """Kills: a schema, or a later time, that forgets for which messages there was none."""
    keeper(registry, tmp_path, 1_000).resolve(7, at(900, 5_000))
    keeper(registry, tmp_path, 2_000).resolve(7, at(1_500))
    registry.register("s", TEXT, schema_id=7)
    keeper(registry, tmp_path, 3_000).resolve(7, at(2_500))
    for older in ("7-0.json", "7-1.json"):
        (tmp_path / older).write_bytes(b"")
    found = keeper(registry, tmp_path).resolve(7, at(1_500, 2_500, 5_000))
    assert found.schema is not None
    assert found.absence == Absence(2_000, ((5_000, 5_000),))


TIMES = st.integers(0, 24)
EVENTS = st.one_of(
    st.tuples(st.just("asks"), st.integers(0, 2), st.lists(TIMES, min_size=1, max_size=5)),
    st.tuples(st.just("starts again"), st.integers(0, 2), st.just([])),
    st.tuples(st.sampled_from(["registered", "deleted", "time goes on"]), st.just(0), st.just([])),
)


class Registered:
    """A registry whose only id is there or not."""

    def __init__(self) -> None:
        self.there, self.asked = False, 0

    def schema(self, schema_id: int) -> WriterSchema:
        self.asked += 1
        if not self.there:
            raise NotThere("the registry has no such schema")
        return WriterSchema(schema_id, "AVRO", TEXT)


@explored(30, 1500, st.lists(EVENTS, max_size=30), st.tuples(*[st.integers(-3, 3)] * 3))
def test_a_verdict_is_given_once_and_holds(events: list[Any], clocks: tuple[int, ...]) -> None:
    """Beside a list that is searched from its beginning for each message.

    Workers whose clocks differ ask for batches of messages, and begin anew."""
    registry, now = Registered(), 5
    entries: list[tuple[int, set[int]] | None] = []  # None: the schema
    questions, verdicts = 0, dict[int, bool]()

    def absent(time: int) -> bool:
        return any(each and (time <= each[0] or time in each[1]) for each in entries)

    with TemporaryDirectory() as place:

        def worker(clock: int) -> KnownSchemas:
            return KnownSchemas(registry, folder(place), lambda: now + clock)  # type: ignore[arg-type]

        workers = [worker(each) for each in clocks]
        for what, who, times in events:
            if what == "starts again":
                workers[who] = worker(clocks[who])
            elif what == "time goes on":
                now += 4
            elif what != "asks":
                registry.there = what == "registered"
            else:
                if None not in entries and not all(map(absent, times)):
                    questions += 1
                    found_now = now + clocks[who]
                    entries.append(None if registry.there else (found_now, set(times)))
                found = workers[who].resolve(7, at(*times))
                said = found.absence.covers(at(*times)).tolist()
                assert said == list(map(absent, times))
                assert all(said) or found.schema is not None
                for time, verdict in zip(times, said, strict=True):
                    assert verdicts.setdefault(time, verdict) == verdict
                everything = found.absence.covers(np.arange(-9, 40)).tolist()
                assert everything == [absent(time) for time in range(-9, 40)]
        assert registry.asked == questions


def test_an_absent_id_is_not_asked_for_again_for_its_messages(
    registry: StandIn, tmp_path: Path
) -> None:
    for _ in range(3):
        keeper(registry, tmp_path, now_ms=1_000).resolve(7, at(1_000))
    assert registry.asked.total() == 1


def test_what_an_id_means_is_on_disk_before_a_row_is_judged_by_it(
    registry: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a power loss could take a verdict back."""
    synced: list[str] = []
    monkeypatch.setattr(LocalFolder, "sync", lambda _, names: synced.extend(names))
    keeper(registry, tmp_path).resolve(7, at(900))
    assert synced[-1] == "7-0.json"


def test_of_two_that_ask_at_once_the_first_is_believed(registry: StandIn, tmp_path: Path) -> None:
    """One hears that the id is absent, the other, a moment later, its schema."""
    slow, fast = keeper(registry, tmp_path, 1_000), keeper(registry, tmp_path, 1_000)
    before = slow._read(7)
    asked = slow._asked(7, before, at(900))
    registry.register("s", TEXT, schema_id=7)
    assert fast.resolve(7, at(900)).schema is not None
    said = slow._published(7, asked)
    assert said.schema is not None
    assert said.absence.until_ms < 0
    # And the other way round: what is published as absent holds for the one who saw the schema.
    other = tmp_path / "other"
    slow, fast = keeper(registry, other, 1_000), keeper(registry, other, 1_000)
    before = slow._read(7)
    asked = slow._asked(7, before, at(900))
    del registry.schemas[7]
    assert fast.resolve(7, at(900)).schema is None
    said = slow._published(7, asked)
    assert not said.says_of(at(1_001))
    assert said.says_of(at(1_000))


def test_many_workers_agree(registry: StandIn, tmp_path: Path) -> None:
    found: list[Any] = []

    def ask(now_ms: int) -> None:
        found.append(keeper(registry, tmp_path, now_ms).resolve(7, at(50)))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(100, 116)]
    for each in threads:
        each.start()
    registry.register("s", TEXT, schema_id=7)
    for each in threads:
        each.join()
    assert len({each.schema is not None and each.absence.until_ms < 50 for each in found}) == 1


@pytest.mark.parametrize("fault", [503, 401, 404])
def test_no_answer_is_kept_as_none(registry: StandIn, tmp_path: Path, fault: int) -> None:
    registry.register("s", TEXT)
    registry.faults = [fault]
    with pytest.raises(SchemaTrouble):
        keeper(registry, tmp_path).resolve(1, at(5))
    assert not list(tmp_path.iterdir())
    assert keeper(registry, tmp_path).resolve(1, at(5)).schema is not None


def test_nothing_is_kept_without_a_place(registry: StandIn) -> None:
    asking = KnownSchemas(client(registry), None, lambda: 10)
    assert asking.resolve(7, at(5)).schema is None
    registry.register("s", TEXT, schema_id=7)
    assert asking.resolve(7, at(6)).schema is not None


def test_every_byte_of_a_file_counts(registry: StandIn, tmp_path: Path) -> None:
    registry.register("s", TEXT)
    keeper(registry, tmp_path).resolve(1, at(5))
    [file] = tmp_path.iterdir()
    whole = file.read_bytes()
    said = json.loads(json.loads(whole)["said"])
    for byte in range(len(whole)):
        file.write_bytes(whole[:byte] + bytes([whole[byte] ^ 1]) + whole[byte + 1 :])
        with contextlib.suppress(DamagedSchema):
            found = keeper(registry, tmp_path).resolve(1, at(5))
            assert found.schema is not None
            assert found.schema.text == said["schema"]["text"]
    file.write_bytes(whole[:40])  # a backup that was cut off
    with pytest.raises(DamagedSchema, match="remove it where it held a schema"):
        keeper(registry, tmp_path).resolve(1, at(5))


def test_a_crash_while_publishing_leaves_nothing_that_counts(
    registry: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("s", TEXT)
    with monkeypatch.context() as patched:
        patched.setattr("os.link", _crash)
        with pytest.raises(KeyboardInterrupt):
            keeper(registry, tmp_path).resolve(1, at(5))
    (tmp_path / "1-0.json.abc.part").write_bytes(b"half")
    assert keeper(registry, tmp_path).resolve(1, at(5)).schema is not None
    assert known._is_ours("1-0.json")
    assert [each.id for each in keeper(registry, tmp_path).kept()] == [1]


def _crash(*_: object) -> None:
    raise KeyboardInterrupt
