"""A secret planted in a day's settings, and every place in which it must not be found."""

from __future__ import annotations

import json
import stat
import urllib.request
from pathlib import Path

from tests.integration.day import Day, chained

SECRET = "hunter2-Pa55phrase"
OPTIONS = {
    # Read by the clients, and of no effect without TLS and SASL.
    "ssl.key.password": SECRET,
    "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="spillway" password="{SECRET}";',
}
PAGES = ("environment/", "SQL/", "StreamingQuery/", "jobs/", "executors/")


def settings(ui_port: int) -> dict[str, str]:
    """For `Day.extra`: the secret, and a Spark UI to look for it."""
    return {"KAFKA__OPTIONS": json.dumps(OPTIONS), "SPARK__UI_PORT": str(ui_port)}


def check_running(ui_port: int, metrics: str) -> None:
    """While the stream runs: Spark's UI and its API, the metrics, the process list."""
    ui = f"http://127.0.0.1:{ui_port}"
    [app] = json.loads(_get(f"{ui}/api/v1/applications"))
    seen = {page: _get(f"{ui}/{page}") for page in PAGES}
    for name in ("environment", "sql?details=true&planDescription=true"):
        seen[name] = _get(f"{ui}/api/v1/applications/{app['id']}/{name}")
    assert "spark.redaction.regex" in seen["environment"]
    seen["metrics"] = _get(f"http://{metrics}/metrics")
    for place, text in seen.items():
        assert SECRET not in text, place
    commands = {path: _read(path) for path in Path("/proc").glob("[0-9]*/cmdline")}
    assert any(b"java" in command for command in commands.values())
    assert not [path for path, command in commands.items() if SECRET.encode() in command]


def check_left(day: Day) -> None:
    """What the day has written: tables with the journal, logs, checkpoints, state, a report.

    The warehouse's key, too, lies in its own file alone, and state is this user's alone.
    """
    shown = (("config", "show"), ("config", "show", "--json"), ("status", "--json"))
    report = ("status", "--report", str(day.folder / "report.html"))
    code, text = day.output(*chained(*shown, report))
    assert code == 0, text
    assert SECRET not in text
    assert (day.folder / "report.html").is_file()
    key = day.folder / "warehouse" / "state-key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    forms = [SECRET.encode(), key.read_bytes(), key.read_bytes().hex().encode()]
    files = [p for root in (day.folder, day.state) for p in root.rglob("*") if p.is_file()]
    assert len(files) > 20
    for path in files:
        data = path.read_bytes()
        assert path == key or not any(form in data for form in forms), path
    for path in (day.state, *day.state.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""
