"""Hosts that do not answer while a job waits for them: told once, and once when they are back."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from py4j.protocol import Py4JError

from spillway.stream import placement as placing
from spillway.stream import silence
from spillway.stream.placement import Placement
from spillway.stream.silence import HOST_SILENT_S, SilentHosts, addresses, answers, nobody_came


def test_a_host_that_listens_or_refuses_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert answers(address)
    assert answers(address), "it refuses: it is there"

    def lost(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(silence.socket, "create_connection", lost)
    assert not answers(address)


def test_a_silent_host_is_told_of_once_and_once_when_it_is_back() -> None:
    hosts = SilentHosts()
    looks = [
        (0.0, True, False),
        (HOST_SILENT_S - 0.1, True, False),
        (HOST_SILENT_S, True, False),
        (HOST_SILENT_S + 1, False, False),
        (61.4, True, True),
        (62.0, True, True),
        (62.1, True, False),
        (61.4 + HOST_SILENT_S + 10, True, False),
    ]
    heard = [hosts.heard({"a": a, "b": b}, at) for at, a, b in looks]
    assert [len(texts) for texts in heard] == [0, 0, 1, 0, 1, 0, 0, 1]
    assert heard[2][0].startswith("b has not answered for 10 s, and the epoch waits for it: ")
    assert heard[4] == ["b answers again, after 61 s"]
    assert heard[7][0].startswith("b has not answered for 19 s, ")


def test_addresses_of_executors() -> None:
    found = addresses(["host-a:1", "host-b:2", "[::1]:3"])
    assert found == {"host-a": ("host-a", 1), "host-b": ("host-b", 2), "[::1]": ("::1", 3)}


class Listening(Placement):
    """Two executors on hosts with slots, one on a host without."""

    def _listening(self) -> list[str]:
        return ["a:1", "b:2", "c:3"]


def test_a_long_job_asks_the_hosts_that_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[tuple[str, int]] = set()
    told, over = [], threading.Event()

    def asks(address: tuple[str, int]) -> bool:
        asked.add(address)
        return address[0] != "b"

    def tell(text: str) -> None:
        told.append(text)
        over.set()

    monkeypatch.setattr(placing, "HOSTS_LOOK_S", 0.01)
    monkeypatch.setattr(placing, "HOST_SILENT_S", 0.0)
    monkeypatch.setattr(silence, "HOST_SILENT_S", 0.05)
    monkeypatch.setattr(placing, "answers", asks)
    placement = Listening(None, False, {0: "a", 1: "b"})
    with placement.watched(lambda: pytest.fail("cancelled"), tell):
        assert over.wait(10)
    assert asked == {("a", 1), ("b", 2)}
    assert [text.split()[0] for text in told] == ["b"]


@pytest.mark.parametrize("back", [True, False])
def test_a_job_that_ends_as_a_host_answers_tells_that_it_does(
    monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    """Between two looks: the first may still wait for the host when the job ends."""
    here, asking, told = threading.Event(), threading.Event(), list[str]()

    def asks(address: tuple[str, int]) -> bool:
        answer = address[0] != "b" or here.is_set()
        if address[0] == "b" and told:
            asking.set()
            time.sleep(0.1)  # the host answers only after this question
        return answer

    monkeypatch.setattr(placing, "HOSTS_LOOK_S", 0.01)
    monkeypatch.setattr(placing, "HOST_SILENT_S", 0.0)
    monkeypatch.setattr(silence, "HOST_SILENT_S", 0.05)
    monkeypatch.setattr(placing, "answers", asks)
    placement = Listening(None, False, {0: "a", 1: "b", 2: "c"})
    with placement.watched(lambda: pytest.fail("cancelled"), told.append):
        assert asking.wait(10)
        if back:
            monkeypatch.setattr(placing, "HOSTS_LOOK_S", 60)
            here.set()
    assert [text.split()[:2] for text in told] == [["b", "has"], ["b", "answers"]][: 1 + back]


def test_a_watcher_outlives_a_spark_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once told, it goes on looking: a host that is gone is still seen."""
    answers_from = iter([ConnectionRefusedError("no JVM"), Py4JError("later"), None])
    told, cancelled = list[str](), threading.Event()

    class Deaf(Listening):
        def _listening(self) -> list[str]:
            if (error := next(answers_from, None)) is not None:
                raise error
            return ["b:2"]

    monkeypatch.setattr(placing, "HOSTS_LOOK_S", 0.01)
    with Deaf(None, False, {0: "a"}, away_s=0.0).watched(cancelled.set, told.append):
        assert cancelled.wait(10)
    assert [text.split(":")[0] for text in told] == [
        "Spark does not say which hosts are there",
        "a has had no executor for 0 s",
    ]


def test_time_without_an_answer_of_spark_is_no_absence_of_a_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = threading.Event()
    looks = iter([*[Py4JError("a pause")] * 20, None])

    class Paused(Listening):
        def _listening(self) -> list[str]:
            if (error := next(looks, None)) is not None:
                raise error
            if seen.is_set():
                return ["a:1"]
            seen.set()
            return ["b:2"]  # the other one registers again

    monkeypatch.setattr(placing, "HOSTS_LOOK_S", 0.02)
    placement = Paused(None, False, {0: "a"}, away_s=0.3)
    with placement.watched(lambda: pytest.fail("cancelled"), lambda _: None):
        assert seen.wait(10)
        time.sleep(0.1)


def test_a_short_job_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "HOSTS_LOOK_S", 0.01)
    monkeypatch.setattr(placing, "answers", lambda _: pytest.fail("asked"))
    placement = Listening(None, False, {0: "a", 1: "b"})
    with placement.watched(lambda: pytest.fail("cancelled"), pytest.fail):
        threading.Event().wait(0.1)


@pytest.mark.parametrize(
    ("driver", "end"),
    [
        (
            "127.0.0.1",
            "the driver at 127.0.0.1: unset SPARK_LOCAL_IP, or set spark.driver.host in ",
        ),
        (
            "localhost",
            "the driver at localhost: unset SPARK_LOCAL_IP, or set spark.driver.host in ",
        ),
        ("10.0.0.1", "Executors must reach the driver at 10.0.0.1, on every port"),
    ],
)
def test_a_cluster_without_executors_is_told_of(driver: str, end: str) -> None:
    told = nobody_came("spark://front:7077", driver, 60.0)
    assert told.startswith("No executor has registered with spark://front:7077 within 60 s, and ")
    assert end in told
