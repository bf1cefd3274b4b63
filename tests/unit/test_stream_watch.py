"""What the watch makes of a status, and what it does then."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from spillway_airflow import alerts, operators
from spillway_airflow.command import CommandFailed
from spillway_airflow.launchers import LaunchFailed
from spillway_airflow.operators import StreamWatchOperator
from spillway_airflow.watch import late_days, look_at_stream, stood_still

MIN = 60_000


def status(
    lag: int | None,
    epoch_s: float | None,
    *sessions: dict[str, Any],
    claim_s: float | None = 100_000,
    term: int = 1,
    epoch: int = 7,
    held: str = "",
) -> dict[str, Any]:
    return {
        "lag_rows": lag,
        "last_epoch_age_s": epoch_s,
        "last_claim_age_s": claim_s,
        "term": term,
        "epoch": epoch,
        "sessions": list(sessions),
        "session": "2026-01-05",
        "intake_held": held,
    }


@pytest.mark.parametrize(
    ("found", "age_s", "kind", "says"),
    [
        (None, 9_000, "fine", "no journal yet"),
        (status(0, 500), 9_000, "fine", "0 rows wait"),  # Kafka is silent: nothing to do
        (status(7, 119), None, "fine", "7 rows wait, the last epoch was 119 s ago"),
        (status(7, 121), None, "restart", "7 rows wait and the last epoch was 121 s ago, over 120"),
        (status(7, 121), 9_000, "restart", "the last epoch was 121 s ago"),
        (status(None, 500), None, "fine", "not known"),  # Kafka is away: a restart helps nobody
        # After a reboot the day is read again: no epoch for minutes.
        (status(7, 7_200, claim_s=899), None, "fine", "claimed the journal 899 s ago, no epoch"),
        (status(7, 7_200, claim_s=899), 930, "fine", "claimed the journal 899 s ago"),
        (status(7, 7_200, claim_s=901), None, "restart", "no epoch since, over 900 s"),
        (status(7, None, claim_s=899), None, "fine", "claimed the journal"),
        (status(7, None, claim_s=901), None, "restart", "claimed the journal 901 s ago"),
        # Once there is an epoch since the claim, that is what counts.
        (status(7, 121, claim_s=200), 230, "restart", "the last epoch was 121 s ago, over 120 s"),
        # It has not even claimed: an earlier driver's claim says nothing of it.
        (status(7, 7_200, claim_s=9_000), 899, "fine", "it began 899 s ago"),
        (
            status(7, 7_200, claim_s=9_000),
            901,
            "restart",
            "it began 901 s ago and has done nothing",
        ),
        (status(7, None, claim_s=None), None, "fine", "no epoch yet"),  # nothing to go by
        (status(7, None, claim_s=None), 901, "restart", "it began 901 s ago"),
        # A pod that is ready since after its claim.
        (status(7, 3, claim_s=4_010), 4_000, "fine", "the last epoch was 3 s ago"),
        (status(0, 7_200, claim_s=9_000), 9_030, "fine", "0 rows wait"),
        # Another start would read no more rows either.
        (status(7, 9_000, held="so many"), 9_030, "fine", "runs and reads no more rows: so many"),
    ],
)
def test_a_stream_that_runs(found: Any, age_s: float | None, kind: str, says: str) -> None:
    seen = look_at_stream(found, running=True, age_s=age_s, stalled_s=120, starting_s=900)
    assert seen.kind == kind
    assert says in seen.says


@pytest.mark.parametrize("found", [None, status(0, 3), status(7, 500)])
def test_a_stream_that_is_gone(found: Any) -> None:
    seen = look_at_stream(found, running=False, age_s=None, stalled_s=120, starting_s=900)
    assert seen.kind == "start"
    assert "no stream runs" in seen.says


@pytest.mark.parametrize(
    ("before", "now", "wanted"),
    [
        (status(7, 121), status(9, 241), True),
        (status(7, 121), status(9, 130, epoch=8), False),  # slow, not stalled
        (status(7, 121), status(9, 241, term=2), False),  # somebody has started another one
        (None, status(7, 121), False),
    ],
)
def test_a_journal_stands_still_between_two_looks(before: Any, now: Any, *, wanted: bool) -> None:
    assert stood_still(before, now) == wanted


def day(
    ended: str | None,
    verdict: dict[str, Any] | None,
    date: str = "2026-01-05",
    unproved: str = "",
) -> Any:
    stage = {"stage": "open", "verdict": verdict, "unproved": unproved}
    return {"session": date, "ended_at": ended, **stage}


COMPLETE = {"complete": True, "missing": 0, "doubled": 0}


@pytest.mark.parametrize(
    ("session", "minutes", "kind", "says"),
    [
        (day(None, None), 159, None, ""),  # 59 minutes after its close
        (day(None, None), 160, "not sealed", "closed 60 min ago and is not sealed (open)"),
        (day("then", None), 160, "not complete", "not proved complete yet"),
        (
            day("then", None, unproved="corrected, not proved again"),
            160,
            "not complete",
            "is not proved complete: corrected, not proved again",
        ),
        (day("then", COMPLETE), 160, None, ""),
        (
            day("then", {"complete": False, "missing": 3, "doubled": 1}),
            160,
            "not complete",
            "3 results missing, 1 doubled",
        ),
        (
            day("then", {"complete": False, "missing": None, "doubled": None}),
            160,
            "not complete",
            "is not complete: its input is lost",
        ),
        (day(None, None, "2026-01-04"), 10_000, None, ""),  # no trading day: nothing is due
    ],
)
def test_days_that_are_late(session: Any, minutes: int, kind: str | None, says: str) -> None:
    late = late_days(
        status(0, 1, session),
        now_ms=minutes * MIN,
        closes_ms={"2026-01-05": 100 * MIN},
        limit_s=3600,
    )
    assert [each.kind for each in late] == ([kind] if kind else [])
    assert all(says in each.says for each in late)


def test_before_there_is_a_journal_no_day_is_late() -> None:
    assert late_days(None, now_ms=0, closes_ms={}, limit_s=3600) == []


# --- the operator -------------------------------------------------------------------------------


class Service:
    """A launcher that does what it is told."""

    def __init__(self, *, running: bool | LaunchFailed = True, age_s: float | None = None) -> None:
        self.running = running
        self.age = age_s
        self.done: list[str] = []

    def is_running(self) -> bool:
        if isinstance(self.running, LaunchFailed):
            raise self.running
        return self.running

    def age_s(self) -> float | None:
        return self.age

    def start(self) -> str:
        self.done.append("start")
        return "started"

    def stop(self) -> str:
        self.done.append("stop")
        return "stopped"


class Kept:
    """XComs as one run after another sees them."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def xcom_pull(self, *, key: str, include_prior_dates: bool, map_indexes: None) -> Any:
        assert include_prior_dates
        assert map_indexes is None
        return self.values.get(key)

    def xcom_push(self, key: str, value: Any) -> None:
        self.values[key] = value


Watch = Callable[..., Any]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Run the operator on a service, with these looks one after the other; the waits between."""

    def run(
        service: Service,
        *looks: Any,
        meanwhile: Mapping[str, Any] | None = None,
        kept: Kept | None = None,
    ) -> list[Any]:
        coming, waits = list(looks), []

        def look(_: Any) -> Any:
            found = coming.pop(0)
            if isinstance(found, Exception):
                raise found
            return found

        def wait(seconds: float) -> None:
            waits.append(seconds)
            vars(service).update(meanwhile or {})

        monkeypatch.setattr(operators.stream, "launcher", lambda *_: service)
        monkeypatch.setattr(StreamWatchOperator, "status", look)
        monkeypatch.setattr(operators.stream.time, "sleep", wait)
        StreamWatchOperator(
            task_id="watch",
            calendar="XNYS",
            stalled=timedelta(seconds=90),
            starting=timedelta(hours=1),
        ).execute({"ti": kept or Kept()})  # type: ignore[typeddict-item]
        assert coming == []
        return waits

    return run


STALLED = status(7, 91)


@pytest.mark.parametrize(
    ("second", "meanwhile", "done"),
    [
        (status(9, 181), {}, ["stop", "start"]),
        (status(9, 100, epoch=8), {}, []),  # an epoch came, and took its time
        (status(0, 181), {}, []),  # nothing waits any more
        (status(9, 181, claim_s=5, term=2), {}, []),  # another driver has taken over
        (status(9, 181), {"age": 20.0}, []),  # somebody has restarted it
        (status(9, 181), {"running": False}, ["start"]),
    ],
)
def test_it_is_restarted_when_a_second_look_agrees(
    watch: Watch, second: Any, meanwhile: Any, done: list[str]
) -> None:
    service = Service()
    assert watch(service, STALLED, second, meanwhile=meanwhile) == [90]
    assert service.done == done


def test_a_stream_that_reads_a_day_again_is_left_alone(watch: Watch) -> None:
    service = Service(age_s=3_590)
    assert watch(service, status(7, 9_000, claim_s=3_500)) == []
    assert service.done == []


def test_a_stream_that_is_gone_is_started_at_once(watch: Watch) -> None:
    service = Service(running=False)
    assert watch(service, None) == []
    assert service.done == ["start"]


LATE = day(None, None)
"""Of 2026-01-05: long ago, for whoever looks now."""


def test_a_day_that_is_late_fails_the_task_after_it_has_acted(watch: Watch) -> None:
    service = Service(running=False)
    with pytest.raises(AirflowFailException, match=r"2026-01-05 closed .* is not sealed"):
        watch(service, status(0, 3, LATE))
    assert service.done == ["start"]


def test_a_stream_that_reads_no_more_rows_fails_the_task_and_is_left_alone(watch: Watch) -> None:
    """A person has to decide; to start it again would change nothing."""
    service = Service()
    with pytest.raises(AirflowFailException, match="it has so many"):
        watch(service, status(7, 9_000, held="it has so many"))
    assert service.done == []
    gone = Service(running=False)
    with pytest.raises(AirflowFailException, match="it has so many"):
        watch(gone, status(7, 9_000, held="it has so many"))
    assert gone.done == ["start"], "a driver that lives obeys commands"


@pytest.mark.parametrize(
    ("running", "looks", "says"),
    [
        (LaunchFailed("the cluster is away"), [status(0, 3, LATE)], "the cluster is away"),
        (True, [status(7, 91, LATE), CommandFailed("status", 3, ["it is torn"])], "it is torn"),
    ],
)
def test_trouble_with_the_service_hides_no_late_day(
    watch: Watch, running: Any, looks: list[Any], says: str
) -> None:
    with pytest.raises(AirflowFailException, match=f"(?s)is not sealed.*{says}"):
        watch(Service(running=running), *looks)


def test_trouble_with_the_service_alone_may_be_tried_again(watch: Watch) -> None:
    with pytest.raises(LaunchFailed, match="the cluster is away"):
        watch(Service(running=LaunchFailed("the cluster is away")), status(0, 3))


def test_each_late_day_is_told_once_for_each_kind(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "alerts"
    tell = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + chr(10)); sys.exit({})"
    alert = lambda code: shlex.join([sys.executable, "-c", tell.format(code), str(file)])  # noqa: E731
    kept = Kept()
    for code, days, lines in (
        (4, [LATE], 1),  # it was not told: once more
        (0, [LATE], 2),
        (0, [LATE], 2),
        (0, [LATE, day(None, None, "2026-01-06")], 3),
        (0, [day("then", None), day(None, None, "2026-01-06")], 4),
    ):
        monkeypatch.setattr(alerts, "setting", lambda *_, code=code: alert(code))
        failed = "alert_command ended with code 4" if code else "closed"
        with pytest.raises(AirflowFailException, match=failed):
            watch(Service(), status(0, 3, *days), kept=kept)
        assert len(file.read_text().splitlines()) == lines
    first, *_, last = file.read_text().splitlines()
    assert "2026-01-05 closed" in first
    assert "is not proved complete yet" in last


# --- the look -----------------------------------------------------------------------------------


def look_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, *options: str) -> Any:
    """What an operator's look at a warehouse gives; the command is the real one."""
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    file = tmp_path / "spillway.toml"
    file.write_text("\n".join(options))
    return StreamWatchOperator(task_id="watch", calendar="XNYS", config=str(file)).status()


@pytest.mark.server
def test_no_warehouse_is_no_trouble_and_broken_settings_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    root = json.dumps(str(tmp_path / "w"))
    assert look_with(monkeypatch, tmp_path, "[warehouse]", f"root = {root}") is None
    with pytest.raises(CommandFailed, match="rot") as broken:
        look_with(monkeypatch, tmp_path, "[warehouse]", f"rot = {root}")
    assert broken.value.code == 2
    (tmp_path / "w" / "journal" / "_delta_log").mkdir(parents=True)
    (tmp_path / "w" / "journal" / "_delta_log" / f"{0:020}.json").touch()
    with pytest.raises(CommandFailed, match="damaged") as damaged:
        look_with(monkeypatch, tmp_path, "[warehouse]", f"root = {root}")
    assert damaged.value.code == 3
