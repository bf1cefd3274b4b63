"""The edges of the Airflow plugin: commands, launchers and what operators make of a status."""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jinja2 import Environment

from spillway.dag_files import dags_folder
from spillway.policy.registry import POLICIES as REGISTERED
from spillway_airflow import alerts, launchers, operators, sections
from spillway_airflow.command import CommandFailed, Running, program
from spillway_airflow.dag_docs import DAGS, described
from spillway_airflow.launchers import (
    CommandLauncher,
    KubernetesLauncher,
    LaunchFailed,
    ProcessLauncher,
)
from spillway_airflow.links import ReportLink, SessionLink, SparkLink
from spillway_airflow.operators import EnsureStreamOperator, MaintenanceOperator, SealOperator
from spillway_airflow.operators.session import before_all
from spillway_airflow.operators.stream import makes_progress, works
from spillway_airflow.sections import SectionError, SettingError
from spillway_airflow.timetables import (
    MarketCloseTimetable,
    MarketHoursTimetable,
    NightlyTimetable,
)
from spillway_airflow.triggers import SealedTrigger, sealed

Settings = dict[str, str]


def alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for(done: Callable[[], bool], what: str, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, what
        time.sleep(0.02)


# --- commands ---------------------------------------------------------------------------------


def test_arguments_reach_the_program_as_they_are(fake: Any) -> None:
    fake("print('a line'); print(json.dumps(sys.argv[1:]))")
    told: list[str] = []
    hostile = "; rm -rf / $(id) `id` {{ x }}"
    running = Running(["seal", "--reason", hostile], told.append, config="a b.toml")
    assert running.wait() == 0
    assert running.json() == ["--config", "a b.toml", "seal", "--reason", hostile]
    assert told[0] == "a line"


def test_the_program_is_the_one_beside_python(settings: Settings) -> None:
    settings["config"] = "x.toml"
    assert program() == [str(Path(sys.executable).with_name("spillway")), "--config", "x.toml"]


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        (["[INFO] begins like a list"], None),
        (['{"a": 1}', "[INFO] begins like a list", "{x} like an object"], {"a": 1}),
        (['{"a": 1}', '["b"]', "text"], ["b"]),
        ([], None),
    ],
)
def test_a_line_that_only_begins_like_json_is_passed_over(
    fake: Any, printed: list[str], found: Any
) -> None:
    fake(f"print({chr(10).join(printed)!r})")
    running = Running(["status", "--json"], lambda _: None)
    assert running.wait() == 0
    assert running.json() == found


def test_a_command_that_fails_is_told_with_its_end(fake: Any) -> None:
    fake("print('what went wrong', file=sys.stderr); sys.exit(3)")
    running = Running(["verify"], lambda _: None)
    with pytest.raises(CommandFailed, match=r"(?s)verify ended with code 3.*what went wrong") as it:
        raise running.failed(running.wait())
    assert it.value.code == 3


def test_a_command_is_ended_with_what_it_started(fake: Any) -> None:
    fake(
        "import subprocess; child = subprocess.Popen([sys.executable, '-c', 'import time;"
        " time.sleep(60)']); print(child.pid, flush=True); time.sleep(60)"
    )
    told: list[str] = []
    running = Running(["cleanup"], told.append)
    wait_for(lambda: bool(told), "the child's number")
    running.end()
    wait_for(lambda: not alive(int(told[0])), "the child to end")
    assert running.process.returncode == -signal.SIGTERM
    running.end()  # again: no harm


@pytest.mark.server
def test_a_command_dies_with_a_killed_worker(fake: Any, tmp_path: Path) -> None:
    """SIGKILL leaves no time for `on_kill`: the kernel ends the command."""
    path = fake("print(os.getpid(), flush=True); time.sleep(60)")
    worker = (
        "import sys\n"
        "from spillway_airflow import command\n"
        "command.setting = lambda name, _: {'command': sys.argv[1]}.get(name)\n"
        "command.Running(['cleanup'], lambda line: print(line, flush=True)).wait()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", worker, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert alive(pid)
    process.kill()
    process.wait(10)
    wait_for(lambda: not alive(pid), "the command to end with its worker")


# --- launchers ----------------------------------------------------------------------------------


@pytest.mark.server
def test_a_process_outlives_whoever_started_it(fake: Any, tmp_path: Path) -> None:
    fake(
        "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print('streaming', sys.argv[1:], flush=True)\n"
        "while True: time.sleep(0.05)"
    )
    service = ProcessLauncher("x.toml", tmp_path / "service")
    assert not service.is_running()
    assert service.age_s() is None
    assert service.stop() == "the stream does not run"
    before = time.monotonic()
    assert "started as process" in service.start()
    assert service.is_running()
    age_s = service.age_s()
    assert age_s is not None
    assert 0 <= age_s <= time.monotonic() - before + 0.02  # the kernel counts in hundredths
    note = json.loads((tmp_path / "service" / "stream.json").read_text())
    wait_for(lambda: "streaming" in service.tail(), "its first line")
    assert "['--config', 'x.toml', 'stream']" in service.tail()
    parent = int(Path(f"/proc/{note['pid']}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent != os.getpid(), "Airflow would end it with the task"
    assert "runs already" in service.start()
    # Another launcher finds it by its note: the task that stops it is not the one that started it.
    other = ProcessLauncher("x.toml", tmp_path / "service")
    assert other.stop() == f"process {note['pid']} has ended"
    assert not service.is_running()


GROUP = (
    "import signal, subprocess\n"
    "child = subprocess.Popen([sys.executable, '-c', {child!r}, {folder!r}])\n"
    "def end(*_):\n"
    "    time.sleep(0.5); print('the epoch has ended', flush=True); sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, {how})\n"
    "while not os.path.exists({folder!r} + '/ready'): time.sleep(0.02)\n"
    "print('child', child.pid, flush=True)\n"
    "while True: time.sleep(0.05)"
)
"""A stream with a process in its group, as pyspark's JVM is."""
CHILD = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: open(sys.argv[1] + "/told to end", "w"))
open(sys.argv[1] + "/ready", "w")
while True: time.sleep(0.05)
"""


@pytest.mark.server
@pytest.mark.parametrize(("how", "ends"), [("end", True), ("signal.SIG_IGN", False)])
def test_a_stream_ends_its_epoch_before_what_it_started_is_killed(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, *, ends: bool
) -> None:
    monkeypatch.setattr(launchers, "STOP_S", 20.0 if ends else 0.5)
    monkeypatch.setattr(launchers, "REST_S", 1.0)
    fake(GROUP.format(child=CHILD, folder=str(tmp_path), how=how))
    service = ProcessLauncher(None, tmp_path / "service")
    service.start()
    wait_for(lambda: "child" in service.tail(), "its child")
    child = int(service.tail().split()[-1])
    assert "has ended" in service.stop()
    assert ("the epoch has ended" in service.tail()) == ends
    wait_for(lambda: not alive(child), "the child to end with it")
    assert not (tmp_path / "told to end").exists()


def test_a_stream_that_cannot_be_started_says_why(fake: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchFailed, match=r"cannot be started in .*file"):
        ProcessLauncher(None, tmp_path / "file" / "service").start()
    fake("").unlink()
    with pytest.raises(LaunchFailed, match=r"could not be started: .*No such file"):
        ProcessLauncher(None, tmp_path / "service").start()


def test_a_stream_that_ends_as_it_begins_does_not_run(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be gone before anybody looks at when it began; the note says that all the same."""
    fake("sys.exit('no such session')")
    real = subprocess.run

    def slowly(*given: Any, **more: Any) -> Any:
        done = real(*given, **more)
        wait_for(lambda: "no such session" in service.tail(), "its last line")
        pid = int(done.stdout.split()[0])
        wait_for(lambda: not alive(pid), "its end")
        return done

    service = ProcessLauncher(None, tmp_path / "service")
    monkeypatch.setattr(launchers.subprocess, "run", slowly)
    service.start()
    note = json.loads((tmp_path / "service" / "stream.json").read_text())
    assert int(note["started"]) > 0
    assert not service.is_running()
    assert service.age_s() is None
    assert service.stop() == "the stream does not run"
    assert "started as process" in service.start(), "the next one is not held up by it"


NO_PID = 1 << 30
"""Above every process id that Linux gives."""


@pytest.mark.parametrize(
    "note",
    [
        {"pid": os.getpid(), "started": "1", "argv": []},  # the number is another process's now
        {"pid": NO_PID, "started": "", "argv": []},  # died before its start was noted
        # A signal to one of these would reach this test's group, or everybody.
        {"pid": 0, "started": ""},
        {"pid": -1, "started": ""},
        {"pid": 1, "started": launchers._started(1)},
        {"pid": True, "started": ""},
        {"pid": str(os.getpid()), "started": launchers._started(os.getpid())},
        {"pid": None, "started": None},
        {"pid": os.getpid()},
        {},
        [],
        "text",
        7,
        None,
    ],
)
def test_a_note_that_names_no_living_stream_means_that_none_runs(tmp_path: Path, note: Any) -> None:
    folder = tmp_path / "service"
    folder.mkdir()
    (folder / "stream.json").write_text(json.dumps(note))
    service = ProcessLauncher(None, folder)
    assert not service.is_running()
    assert service.age_s() is None
    assert service.stop() == "the stream does not run"


@pytest.mark.parametrize("text", [b"", b"{", b'{"pid": 5', b"\xff\xfe"])
def test_a_torn_note_means_that_no_stream_runs(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "stream.json").write_bytes(text)
    assert not ProcessLauncher(None, tmp_path).is_running()


def test_configured_commands(tmp_path: Path) -> None:
    mark = tmp_path / "a mark"
    service = CommandLauncher(f"touch '{mark}'", f"rm '{mark}'", f"test -e '{mark}'")
    assert not service.is_running()
    service.start()
    assert service.is_running()
    assert service.age_s() is None
    service.stop()
    assert not service.is_running()
    with pytest.raises(LaunchFailed, match="ended with 1"):
        service.stop()
    with pytest.raises(LaunchFailed, match="No such file"):
        CommandLauncher("/no/such/program", "", "").start()


class Api(BaseHTTPRequestHandler):
    """As much of Kubernetes as is needed: one Deployment, whose controller looks now and then."""

    generation = 1
    slow = 0
    """Questions until the controller acts, and again until a pod that ends is gone."""
    status: dict[str, Any] = {}  # noqa: RUF012
    coming: list[dict[str, Any]] = []  # noqa: RUF012
    seen: list[tuple[str, str, str | None]] = []  # noqa: RUF012
    redirect = 302

    def _answer(self, code: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        Api.seen.append(("GET", self.path, self.headers["Authorization"]))
        if self.path.endswith("/deployments/moved"):
            self.send_response(Api.redirect)
            self.send_header("Location", f"https://127.0.0.1:{self.server.server_port}/elsewhere")  # type: ignore[attr-defined]
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if not self.path.endswith("/deployments/stream"):
            return self._answer(404, {"message": "not found"})
        if Api.coming:
            Api.status = Api.coming.pop(0)
        metadata = {"generation": Api.generation}
        return self._answer(200, {"metadata": metadata, "status": Api.status})

    def do_PATCH(self) -> None:
        Api.seen.append(("PATCH", self.path, self.headers["Content-Type"]))
        length = int(self.headers["Content-Length"])
        wanted = json.loads(self.rfile.read(length))["spec"]["replicas"]
        Api.generation += 1
        seen = {"observedGeneration": Api.generation}
        ending = [] if wanted else [seen | {"terminatingReplicas": 1}] * Api.slow
        last = seen | ({"replicas": wanted} if wanted else {})
        Api.coming = [*[Api.status] * Api.slow, *ending, last]
        self._answer(200, {"spec": {"replicas": wanted}})

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate for 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a cluster of a test")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("authority")
    (folder / "ca.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").write_bytes(pem)
    return folder


@pytest.fixture
def api(authority: Path, tmp_path: Path) -> Iterator[str]:
    """The API over TLS; the account in `tmp_path` trusts it and has a token."""
    Api.slow, Api.status, Api.coming, Api.seen = 0, {}, [], []
    server = HTTPServer(("127.0.0.1", 0), Api)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "ca.crt", authority / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    shutil.copy(authority / "ca.crt", tmp_path)
    (tmp_path / "token").write_text("secret\n")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_deployment_is_scaled(api: str, tmp_path: Path) -> None:
    service = KubernetesLauncher("joins", "stream", f"{api}/", tmp_path)
    assert not service.is_running()
    assert "scaled to 1" in service.start()
    assert service.is_running()  # though it is not ready: the cluster gets on with it
    assert "scaled to 0" in service.stop()
    assert not service.is_running()
    path = "/apis/apps/v1/namespaces/joins/deployments/stream"
    assert Api.seen[0] == ("GET", path, "Bearer secret")
    assert Api.seen[1] == ("PATCH", f"{path}/scale", "application/merge-patch+json")
    with pytest.raises(LaunchFailed, match="404"):
        KubernetesLauncher("joins", "other", api, tmp_path).is_running()
    with pytest.raises(LaunchFailed, match="no cluster"):
        KubernetesLauncher("joins", "stream").is_running()


@pytest.mark.parametrize(
    "server", ["http://{}", "HTTP://{}", "ftp://{}", "file:///etc/passwd", "{}"]
)
def test_the_token_goes_nowhere_unencrypted(api: str, tmp_path: Path, server: str) -> None:
    place = server.format(api.removeprefix("https://"))
    service = KubernetesLauncher("joins", "stream", place, tmp_path)
    for act in (service.is_running, service.age_s, service.start, service.stop):
        with pytest.raises(LaunchFailed, match=r"kubernetes_server = .*must be an https:// addr"):
            act()
    assert Api.seen == []


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_the_token_does_not_follow_a_redirect(
    api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(Api, "redirect", code)
    with pytest.raises(LaunchFailed, match=rf"redirect \({code}\) to https://.*/elsewhere.*token"):
        KubernetesLauncher("joins", "moved", api, tmp_path).is_running()
    assert [path.rpartition("/")[2] for _, path, _ in Api.seen] == ["moved"]


def test_another_server_than_the_cluster_gets_no_token(api: str, tmp_path: Path) -> None:
    """Its certificate is not one that the account's authority has signed."""
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(LaunchFailed, match="CERTIFICATE_VERIFY_FAILED"):
        KubernetesLauncher("joins", "stream", api, tmp_path).is_running()
    assert Api.seen == []


@pytest.mark.server
def test_a_pod_is_gone_before_the_next_one_is_asked_for(
    api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that looks late would see the one replica that it knows, and change nothing."""
    service = KubernetesLauncher("joins", "stream", api, tmp_path)
    service.start()
    assert service.is_running()
    Api.slow, Api.seen = 2, []
    service.stop()
    assert [method for method, _, _ in Api.seen] == ["PATCH", *["GET"] * 5]
    assert not service.is_running()
    monkeypatch.setattr(launchers, "GONE_S", 0.0)
    with pytest.raises(LaunchFailed, match="joins/stream has a pod 0 s after it was scaled to 0"):
        service.stop()


def test_how_long_a_pod_is_there(api: str, tmp_path: Path) -> None:
    service = KubernetesLauncher("joins", "stream", api, tmp_path)
    assert service.age_s() is None
    since = datetime.now(UTC) - timedelta(minutes=5)
    conditions = [
        {"type": "Progressing", "lastTransitionTime": "2026-01-05T14:30:00Z"},
        {"type": "Available", "lastTransitionTime": since.strftime("%Y-%m-%dT%H:%M:%SZ")},
    ]
    Api.status = {"replicas": 1, "conditions": conditions}
    assert service.age_s() == pytest.approx(300, abs=10)


def test_the_launcher_is_a_setting(settings: Settings, tmp_path: Path) -> None:
    assert isinstance(launchers.launcher(), ProcessLauncher)
    settings["launcher"] = "command"
    with pytest.raises(LaunchFailed, match="needs"):
        launchers.launcher()
    settings |= {"start": "a", "stop": "b", "status": "c"}
    assert launchers.launcher() == CommandLauncher("a", "b", "c")
    settings |= {"launcher": "kubernetes", "kubernetes_deployment": "stream"}
    assert launchers.launcher() == KubernetesLauncher("default", "stream")
    more = {"launcher": "kubernetes", "kubernetes_deployment": "l", "kubernetes_server": "http://l"}
    settings |= {f"spillway_london.{name}": value for name, value in more.items()}
    with pytest.raises(LaunchFailed, match=r"^\[spillway_london\] kubernetes_server = http://l:"):
        launchers.launcher(section="spillway_london").is_running()
    settings["launcher"] = "magic"
    with pytest.raises(LaunchFailed, match="use process, command or kubernetes"):
        launchers.launcher()


def test_each_section_is_a_warehouse_of_its_own(settings: Settings) -> None:
    settings |= {"config": "here.toml", "london.config": "there.toml", "london.command": "/x"}
    assert program()[1:] == ["--config", "here.toml"]
    assert program(section="london") == ["/x", "--config", "there.toml"]
    mine, other = launchers.launcher(), launchers.launcher(section="london")
    assert isinstance(mine, ProcessLauncher)
    assert isinstance(other, ProcessLauncher)
    assert (mine.section, other.section) == ("spillway", "london")
    assert (mine.folder.name, other.folder.name) == ("service", "service-london")
    settings["london.launcher"] = "command"
    with pytest.raises(LaunchFailed, match=r"\[london\] start, stop and status"):
        launchers.launcher(section="london")
    assert sections.dag_id("maintenance") == "spillway_maintenance"
    assert sections.dag_id("maintenance", "london") == "london_maintenance"
    settings["london.dag_prefix"] = "ldn-"
    assert sections.dag_id("maintenance", "london") == "ldn-maintenance"
    task = SimpleNamespace(session="2026-01-05", section="london")
    link = SessionLink().get_link(task, ti_key=None)  # type: ignore[arg-type]
    assert link == "/plugin/london/london/#sessions/2026-01-05"
    link = ReportLink().get_link(task, ti_key=None)  # type: ignore[arg-type]
    assert link == "/london/report/2026-01-05"


def test_sections_are_named_in_a_setting(settings: Settings) -> None:
    assert sections.sections() == ["spillway"]
    settings["sections"] = "london, spillway  tokyo_2"
    assert sections.sections() == ["spillway", "london", "tokyo_2"]
    settings["sections"] = "../etc"
    with pytest.raises(SectionError, match=r"'\.\./etc' must be of lower-case letters"):
        sections.sections()


# --- what a status means ------------------------------------------------------------------------


def status(term: int, epoch: int, lag: int | None = 0) -> dict[str, Any]:
    return {"term": term, "epoch": epoch, "lag_rows": lag}


@pytest.mark.parametrize(
    ("before", "now", "wanted"),
    [
        (None, None, False),
        (None, status(0, -1), False),  # no driver has claimed the journal
        (None, status(1, -1), True),  # nothing waits
        (None, status(1, -1, 5), False),
        (None, status(1, 0, 5), True),
        (status(3, 9), status(3, 9), False),  # still the driver before
        (status(3, 9), status(4, 9), True),
        (status(3, 9), status(4, 9, 100), False),
        (status(3, 9), status(4, 10, 100), True),
        (status(3, 9), status(4, 9, None), True),  # Kafka does not answer: the claim has to do
    ],
)
def test_a_stream_works_once_it_has_claimed_and_makes_progress(
    before: Any, now: Any, *, wanted: bool
) -> None:
    assert works(before, now) == wanted


@pytest.mark.parametrize(
    ("now", "wanted"),
    [
        (None, False),  # a stream that has just been started, by somebody else
        ({"term": 0, "lag_rows": 0, "last_epoch_age_s": None}, False),
        ({"term": 1, "lag_rows": 0, "last_epoch_age_s": None}, True),
        ({"term": 1, "lag_rows": None, "last_epoch_age_s": 900.0}, True),  # no broker answers
        ({"term": 1, "lag_rows": 5, "last_epoch_age_s": None}, False),
        ({"term": 1, "lag_rows": 5, "last_epoch_age_s": 900.0}, False),
        ({"term": 1, "lag_rows": 5, "last_epoch_age_s": 1.0}, True),
    ],
)
def test_a_stream_that_runs_may_not_work_yet(now: Any, *, wanted: bool) -> None:
    assert makes_progress(now) == wanted


def test_sealed_sessions_are_found() -> None:
    days = [
        {"session": "2026-01-06", "ended_at": None, "stage": "open"},
        {"session": "2026-01-05", "ended_at": "then", "stage": "sealed"},
    ]
    assert sealed({"sessions": days}, "2026-01-05") == {
        "session": "2026-01-05",
        "ended_at": "then",
        "stage": "sealed",
    }
    assert sealed({"sessions": days}, "2026-01-06") is None
    assert sealed({"sessions": days}, "2026-01-07") is None
    assert before_all({"sessions": days}, "2026-01-02") == "2026-01-05"
    assert before_all({"sessions": days}, "2026-01-05") is None


def test_the_trigger_comes_back_as_it_was() -> None:
    trigger = SealedTrigger("2026-01-05", "x.toml", 3.0)
    path, given = trigger.serialize()
    assert path == f"{SealedTrigger.__module__}.SealedTrigger"
    again = SealedTrigger(**given)
    assert (again.session, again.config, again.every_s) == ("2026-01-05", "x.toml", 3.0)


# --- operators ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, []),
        # As Airflow renders params: text, `None` where none was given.
        ({"dry_run": "False", "keep_spilled_days": "None", "keep_statistics_days": "None"}, []),
        ({"dry_run": "True", "keep_spilled_days": "0"}, ["--keep-spilled-days", "0", "--dry-run"]),
        ({"keep_statistics_days": 30, "dry_run": False}, ["--keep-statistics-days", "30"]),
    ],
)
def test_maintenance_says_what_was_done(fake: Any, given: Any, options: list[str]) -> None:
    fake("print(json.dumps({'asked': sys.argv[1:], 'notes': ['left: spill']}))")
    report = MaintenanceOperator(task_id="maintain", config="x.toml", **given).execute({})
    assert report["asked"] == ["--config", "x.toml", "maintain", "--json", *options]


def test_maintenance_that_fails_is_retried(fake: Any) -> None:
    fake("print('the disk is full', file=sys.stderr); sys.exit(3)")
    with pytest.raises(CommandFailed, match="the disk is full"):
        MaintenanceOperator(task_id="maintain").execute({})


@pytest.mark.parametrize(
    ("looks", "says"),
    [
        ([None, CommandFailed("status", 3, ["it is torn"]), status(1, -1)], None),
        ([None, CommandFailed("status", 3, ["it is torn"])], "did not begin to work.*it is torn"),
        ([CommandFailed("status", 2, ["wrong settings"])], "wrong settings"),
    ],
)
def test_a_look_that_fails_while_a_stream_begins_is_repeated(
    monkeypatch: pytest.MonkeyPatch, looks: list[Any], says: str | None
) -> None:
    """Its tables may just be made; but what cannot be looked at from the first is not started."""
    started: list[str] = []
    service = SimpleNamespace(is_running=lambda: False, start=lambda: started.append("it"))

    def look(_: Any) -> Any:
        found = looks.pop(0) if len(looks) > 1 else looks[0]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(operators.stream, "launcher", lambda *_: service)
    monkeypatch.setattr(EnsureStreamOperator, "status", look)
    monkeypatch.setattr(operators.stream.time, "sleep", lambda _: None)
    ensure = EnsureStreamOperator(task_id="ensure", patience=timedelta(seconds=0.5))
    if says is None:
        assert ensure.execute({}) == {"started": True}
    else:
        with pytest.raises((LaunchFailed, CommandFailed), match=f"(?s){says}"):
            ensure.execute({})
    assert bool(started) == (says != "wrong settings")


# --- DAGs ---------------------------------------------------------------------------------------


@pytest.fixture
def dags(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> dict[str, DAG]:
    """The file's DAGs, as an Airflow has them whose settings name an exchange and no more."""
    settings["calendar"] = "XLON"
    return loaded(dags_folder() / "trading_day.py", monkeypatch)


def loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, DAG]:
    found: dict[str, DAG] = {}
    enter = DAG.__enter__

    def kept(dag: DAG) -> DAG:
        found[dag.dag_id] = dag
        return enter(dag)

    monkeypatch.setattr(DAG, "__enter__", kept)
    runpy.run_path(str(path))
    return found


def test_the_file_that_is_shipped_is_the_one_that_is_changed() -> None:
    """A copy in the package was once an older one: Airflow showed what the tests did not see."""
    shipped = dags_folder() / "trading_day.py"
    assert shipped.is_symlink()
    assert shipped.samefile(Path(__file__).resolve().parents[2] / "dags" / "trading_day.py")


def test_a_section_s_tasks_work_for_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A copy of the file with another section: other ids, and every task knows whose it is."""
    text = (dags_folder() / "trading_day.py").read_text()
    copy = tmp_path / "london.py"
    copy.write_text(text.replace('SECTION = "spillway"', 'SECTION = "london"'))
    settings["london.calendar"] = "XLON"
    found = loaded(copy, monkeypatch)
    assert all(name.startswith("london_") for name in found)
    assert len(found) == 5
    assert {task.section for dag in found.values() for task in dag.tasks} == {"london"}
    assert found["london_market_close"].timetable.calendar == "XLON"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("open_lead_s", "30m", "a number of seconds, such as 1800"),
        ("close_delay_s", "nan", "a number of seconds, such as 600"),
        ("rebalance_every_s", "1e999", "a number of seconds, such as 60"),
        ("complete_within_s", "2 h", "a number of seconds, such as 7200"),
        ("start_date", "soon", "a date and time, such as 2026-01-01T00:00:00+00:00"),
    ],
)
def test_a_setting_that_is_none_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str, wrong: str, right: str
) -> None:
    """Airflow shows that instead of all five DAGs."""
    settings[name] = wrong
    said = re.escape(f"[spillway] {name} = {wrong!r}: write {right}")
    with pytest.raises(SettingError, match=said):
        loaded(dags_folder() / "trading_day.py", monkeypatch)


def test_whatever_a_person_may_change_is_described(dags: dict[str, DAG]) -> None:
    described = {
        name: {key: dag.params.get_param(key).description for key in dag.params}
        for name, dag in dags.items()
    }
    assert all(text for params in described.values() for text in params.values()), described
    assert {name: set(params) for name, params in described.items()} == {
        "spillway_market_open": set(),
        "spillway_rebalance": {"policy", "dry_run"},
        "spillway_stream_watch": set(),
        "spillway_market_close": {"at", "session", "reason"},
        "spillway_maintenance": {"dry_run", "keep_spilled_days", "keep_statistics_days"},
    }


def test_each_dag_says_what_to_do_when_it_fails(dags: dict[str, DAG], settings: Settings) -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    assert {f"spillway_{name}" for name in DAGS} == set(dags)
    for name, each in DAGS.items():
        said = dags[f"spillway_{name}"].doc_md or ""
        assert each.fails in said
        assert each.pages[0].startswith("runbook.md#")
        for place in each.pages:
            page, _, anchor = place.partition("#")
            headings = re.findall(r"^#+ (.*)$", (docs / page).read_text(), re.M)
            assert anchor in {heading.lower().replace(" ", "-") for heading in headings}, place
            assert f"{anchor.replace('-', ' ')} (`docs/{page}`)" in said
        tasks = {task.task_id for task in dags[f"spillway_{name}"].tasks}
        listed = set(re.findall(r"^\d\. `(\w+)`", each.does, re.M))
        assert listed in (set(), tasks), "all of its tasks, or none"
    settings["docs_url"] = "https://docs.example/spillway/"
    assert "(https://docs.example/spillway/runbook.html#every-night)" in described("maintenance")


def test_a_form_opens_valid_and_stays_so_when_a_field_is_emptied(dags: dict[str, DAG]) -> None:
    """Airflow makes None of what is emptied, and refuses that where a type has no null."""
    needed = set()
    for name, dag in dags.items():
        for key in dag.params:
            param = dag.params.get_param(key)
            kinds = param.schema["type"]
            if "null" in ([kinds] if isinstance(kinds, str) else kinds):
                assert param.value is None, f"{name}: {key} has a default of its own"
            else:
                assert param.value is not None, f"{name}: the form opens red for {key}"
                needed.add(key)
    assert needed == {"at", "dry_run"}
    offered = dags["spillway_rebalance"].params.get_param("policy").schema["examples"]
    assert offered == list(REGISTERED)
    seal = dags["spillway_market_close"].get_task("seal")
    assert isinstance(seal, SealOperator)
    for reason, kept in ((None, ""), ("early", "early")):
        rendered = Environment(autoescape=False).from_string(seal.reason)
        assert rendered.render(params={"reason": reason}) == kept


def test_the_market_opens_with_topics_a_check_and_the_stream(dags: dict[str, DAG]) -> None:
    dag = dags["spillway_market_open"]
    assert isinstance(dag.timetable, MarketHoursTimetable)
    assert (dag.timetable.every, dag.timetable.lead) == (timedelta(days=1), timedelta(minutes=30))
    order = {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks}
    assert order == {"topics": ["doctor"], "doctor": ["ensure_stream"], "ensure_stream": []}


def test_the_delay_of_the_close_is_compared_with_the_grace(dags: dict[str, DAG]) -> None:
    delay = dags["spillway_market_close"].timetable.delay  # type: ignore[attr-defined]
    assert delay == timedelta(minutes=10)
    for dag, task in (("spillway_market_open", "doctor"), ("spillway_market_close", "seal")):
        assert dags[dag].get_task(task).close_delay == delay


def test_closes_are_made_up_for_one_after_the_other(dags: dict[str, DAG]) -> None:
    dag = dags["spillway_market_close"]
    assert isinstance(dag.timetable, MarketCloseTimetable)
    assert dag.timetable.every_session
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    assert {task.calendar for task in dag.tasks} == {dag.timetable.calendar}


def test_maintenance_runs_once_a_night_never_two_at_once(dags: dict[str, DAG]) -> None:
    dag = dags["spillway_maintenance"]
    assert isinstance(dag.timetable, NightlyTimetable)
    assert (dag.timetable.at, dag.timetable.calendar) == ("03:00", "XLON")
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    [task] = dag.tasks
    assert isinstance(task, MaintenanceOperator)
    assert task.retries == 3
    rendered = {name: getattr(task, name) for name in dag.params}
    assert rendered == {name: f"{{{{ params.{name} }}}}" for name in dag.params}


@pytest.mark.server
def test_a_dag_file_is_parsed_without_spark_pandas_or_a_calendar() -> None:
    look = (
        "import json, runpy, sys\n"
        "from airflow.sdk import DAG\n"
        "found = runpy.run_path(sys.argv[1])\n"
        "heavy = ('pandas', 'pyspark', 'exchange_calendars', 'deltalake', 'kafka')\n"
        "print(json.dumps([name for name in heavy if name in sys.modules]))\n"
    )
    path = str(dags_folder() / "trading_day.py")
    done = subprocess.run(
        [sys.executable, "-c", look, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


# --- alerts and links ---------------------------------------------------------------------------

LATE = {
    "dag_run": {
        "dag_id": "spillway_market_close",
        "partition_key": "2026-01-05",
        "state": "running",
    }
}


def told_by(command: str | None, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(alerts, "setting", lambda *_: command)
    return asyncio.run(alerts.late("2:00:00", context=LATE))


def test_a_late_day_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = "spillway_market_close: 2026-01-05 was not done within 2:00:00 (it is running)."
    assert told_by(None, monkeypatch).startswith(said)
    tell = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
    command = shlex.join([sys.executable, "-c", tell, str(tmp_path / "a; touch b")])
    told_by(command, monkeypatch)
    assert (tmp_path / "a; touch b").read_text().startswith(said)  # no shell has seen it


def test_an_alert_that_cannot_be_given_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    command = shlex.join([sys.executable, "-c", "import sys; print('no line'); sys.exit(4)"])
    with pytest.raises(RuntimeError, match="code 4: no line"):
        told_by(command, monkeypatch)
    with pytest.raises(RuntimeError, match=r"\(/no/such/program\) cannot be run: .*No such file"):
        told_by("/no/such/program", monkeypatch)


def test_a_link_holds_what_a_session_is_called_and_nothing_else() -> None:
    task = SimpleNamespace(session='2026-01-05"><script>')
    link = SessionLink().get_link(task, ti_key=None)  # type: ignore[arg-type]
    assert link == "/plugin/spillway/spillway/#sessions/2026-01-05%22%3E%3Cscript%3E"
    link = ReportLink().get_link(task, ti_key=None)  # type: ignore[arg-type]
    assert link == "/spillway/report/2026-01-05%22%3E%3Cscript%3E"


def test_tasks_lead_to_what_they_work_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(operator: type[Any]) -> list[str]:
        return [link.name for link in operator.operator_extra_links]

    assert names(operators.EnsureStreamOperator) == ["Spark UI"]
    assert names(operators.RebalanceOperator) == ["Decisions", "Spark UI"]
    for operator in (operators.SealOperator, operators.WaitForSealOperator):
        assert names(operator) == ["Session", "Report", "Spark UI"]
    for operator in (operators.CleanupOperator, operators.VerifyOperator):
        assert names(operator) == ["Session", "Report"]
    monkeypatch.setenv("AIRFLOW__SPILLWAY__SPARK_UI", "http://driver:4040")
    task = SimpleNamespace(session="2026-01-05")
    assert SparkLink().get_link(task, ti_key=None) == "http://driver:4040"  # type: ignore[arg-type]
