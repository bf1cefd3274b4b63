"""Operators over a program in spillway's place: what they ask, and what they make of the answer."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
)
from jinja2 import Environment

from spillway_airflow.command import CommandFailed
from spillway_airflow.operators import (
    CleanupOperator,
    DoctorOperator,
    RebalanceOperator,
    SealOperator,
    SpillwayOperator,
    StopStreamOperator,
    TopicsOperator,
    VerifyOperator,
    WaitForSealOperator,
)
from spillway_airflow.triggers import SealedTrigger, waits_for

DAY = "2026-01-05"
Fake = Callable[[str], Path]


def answering(answer: Any, code: int = 0, told: str = "") -> str:
    """A program that prints an answer and ends."""
    return (
        f"print({told!r}, file=sys.stderr)\nprint({json.dumps(answer)!r})\nsys.exit({code})"
        if answer is not None
        else f"print({told!r}, file=sys.stderr)\nsys.exit({code})"
    )


# --- before the open ---------------------------------------------------------------------------


@pytest.mark.parametrize(("create", "options"), [(True, ["--create"]), (False, [])])
def test_topics_are_made_or_only_looked_at(fake: Fake, *, create: bool, options: list[str]) -> None:
    fake("print(json.dumps(sys.argv[1:]))")
    asked = TopicsOperator(task_id="topics", create=create).execute({})
    assert asked == ["topics", "--json", *options]


def test_missing_topics_fail_with_the_command_s_message(fake: Fake) -> None:
    fake(answering([{"topic": "stock", "exists": False}], 3, "no topic stock on b:1"))
    with pytest.raises(CommandFailed, match="no topic stock on b:1"):
        TopicsOperator(task_id="topics", create=False).execute({})


def check(name: str, status: str) -> dict[str, str]:
    return {"name": name, "status": status, "what": f"{name} is {status}", "mend": f"mend {name}"}


def test_doctor_fails_with_what_fails_and_how_to_mend_it(fake: Fake) -> None:
    several = [{**check("files", "fail"), "what": what} for what in ("a is gone", "b is gone")]
    checks = [check("java", "ok"), check("broker", "fail"), check("tables", "warn"), *several]
    fake(answering(checks, 3))
    with pytest.raises(AirflowException) as it:
        DoctorOperator(task_id="doctor").execute({})
    assert "broker: broker is fail -> mend broker" in str(it.value)
    assert "files: a is gone -> mend files\nfiles: b is gone" in str(it.value)
    assert "java" not in str(it.value)
    assert "tables" not in str(it.value)
    fake(answering([check("java", "ok"), check("tables", "warn")]))
    warned = DoctorOperator(task_id="doctor").execute({})
    assert warned == ["tables: tables is warn -> mend tables"]


def test_spillway_is_told_when_the_dag_closes_the_day(fake: Fake, tmp_path: Path) -> None:
    """Which it cannot know, and compares with the grace that it gives to late rows."""
    asked = tmp_path / "asked"
    fake(
        f"print(json.dumps(sys.argv[1:]), file=open({str(asked)!r}, 'a'))\n"
        f"print({json.dumps(status(None))!r} if 'status' in sys.argv else '[]')"
    )
    day: Any = {"dag": SimpleNamespace(dag_id="spillway_market_close")}
    for delay in (None, timedelta(minutes=10)):
        DoctorOperator(task_id="doctor", close_delay=delay).execute({})
        for at in ("close", "now"):
            SealOperator(task_id="seal", session=DAY, at=at, close_delay=delay).execute(day)
    calls = [json.loads(line) for line in asked.read_text().splitlines()]
    found = [(call[0], call[-1]) for call in calls if "status" not in call]
    told = "--close-delay=600.0"
    untold = [("doctor", "--json"), ("seal", "airflow"), ("seal", "airflow")]
    assert found == [*untold, ("doctor", told), ("seal", told), ("seal", "airflow")]


def test_doctor_that_cannot_look_fails(fake: Fake) -> None:
    fake(answering(None, 2, "there is no setting state.slot"))
    with pytest.raises(CommandFailed, match=r"no setting state\.slot"):
        DoctorOperator(task_id="doctor").execute({})


def test_another_host_s_memory_does_not_keep_the_stream_from_starting(
    fake: Fake, settings: dict[str, str]
) -> None:
    fake(answering([check("memory", "fail"), check("calendar", "ok")], 3))
    with pytest.raises(AirflowException, match="mend memory"):
        DoctorOperator(task_id="doctor").execute({})
    settings |= {"launcher": "command", "start": "a", "stop": "b", "status": "c"}
    assert DoctorOperator(task_id="doctor").execute({}) == []
    fake(answering([check("memory", "fail"), check("calendar", "fail")], 3))
    with pytest.raises(AirflowException, match="mend calendar"):
        DoctorOperator(task_id="doctor").execute({})


def test_the_stream_is_stopped_by_its_launcher(settings: dict[str, str], tmp_path: Path) -> None:
    mark = tmp_path / "runs"
    mark.touch()
    settings |= {"launcher": "command", "start": "true", "status": f"test -e {mark}"}
    settings["stop"] = f"rm {mark}"
    StopStreamOperator(task_id="stop").execute({})
    assert not mark.exists()


# --- while it is open --------------------------------------------------------------------------


def test_there_is_nothing_to_decide_before_there_is_a_stream(fake: Fake) -> None:
    fake(answering(None, 4, "there is no warehouse"))
    with pytest.raises(AirflowSkipException):
        RebalanceOperator(task_id="decide").execute({})


def test_a_day_cannot_be_closed_before_there_is_a_stream(fake: Fake) -> None:
    """Only the controller has nothing to do then: a day that was not closed is a failure."""
    fake(answering(None, 4, "the journal is empty"))
    day: Any = {"dag": SimpleNamespace(dag_id="spillway_market_close")}
    for operator in (SealOperator, CleanupOperator, VerifyOperator):
        with pytest.raises(CommandFailed, match="ended with code 4:\nthe journal is empty"):
            operator(task_id="close", session=DAY).execute(day)


@pytest.mark.parametrize(
    ("code", "says"), [(2, "unknown policy 'nonsense'"), (3, "the journal is damaged")]
)
def test_a_controller_that_cannot_decide_fails(fake: Fake, code: int, says: str) -> None:
    fake(answering(None, code, says))
    with pytest.raises(CommandFailed, match=says):
        RebalanceOperator(task_id="decide", policy="nonsense").execute({})


# --- wrong settings ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operator",
    [
        TopicsOperator(task_id="t"),
        RebalanceOperator(task_id="t"),
        WaitForSealOperator(task_id="t", session=DAY),
        VerifyOperator(task_id="t", session=DAY),
    ],
    ids=lambda operator: type(operator).__name__,
)
def test_wrong_settings_fail_without_a_retry_and_name_who_said_them(
    fake: Fake, settings: dict[str, str], operator: Any
) -> None:
    fake(answering(None, 2, "/nowhere.toml: there is no such file"))
    settings["config"] = "/nowhere.toml"
    with pytest.raises(AirflowFailException) as it:
        operator.execute({})
    assert "no such file\n(settings: /nowhere.toml, by [spillway] config)" in str(it.value)


def test_a_task_s_own_settings_are_named_as_its_own(fake: Fake, settings: dict[str, str]) -> None:
    fake(answering(None, 2, "wrong"))
    with pytest.raises(AirflowFailException, match=r"mine\.toml, the task's `config`"):
        TopicsOperator(task_id="t", config="mine.toml").execute({})
    with pytest.raises(
        AirflowFailException, match=r"spillway\.toml, for \[spillway\] config names"
    ):
        TopicsOperator(task_id="t").execute({})


def test_other_failures_are_tried_again(fake: Fake) -> None:
    fake(answering(None, 3, "the journal is damaged"))
    with pytest.raises(CommandFailed) as it:
        TopicsOperator(task_id="t").execute({})
    assert not isinstance(it.value, AirflowFailException)
    assert "settings:" not in str(it.value)


def test_what_was_decided_is_given(fake: Fake) -> None:
    asked = [
        {"outcome": {"obeyed": True, "reason": ""}},
        {"outcome": {"obeyed": False, "reason": "too late"}},
    ]
    declined = [{"what": "spill", "why": "there is room"}]
    fake(
        "assert sys.argv[1:] == ['rebalance', '--json', '--by', 'airflow', '--policy', 'flux',"
        " '--dry-run'], sys.argv\n" + answering({"asked": asked, "declined": declined}, 3)
    )
    found = RebalanceOperator(task_id="decide", policy="flux", dry_run="True").execute({})
    assert found == {"asked": 2, "refused": ["too late"], "declined": declined}


# --- after the close ---------------------------------------------------------------------------


def status(ended_at: str | None) -> dict[str, Any]:
    days = [{"session": DAY, "ended_at": ended_at, "stage": "open" if not ended_at else "sealed"}]
    return {"sessions": days, "lag_rows": 1234, "last_epoch_age_s": 3.2}


def test_a_sealed_day_is_not_waited_for(fake: Fake) -> None:
    fake(answering(status("then")))
    found = WaitForSealOperator(task_id="wait", session=DAY).execute({})
    assert found == {"session": DAY, "ended_at": "then", "stage": "sealed"}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What operators write into their task's log."""
    lines: list[str] = []

    class Log:
        def info(self, text: str, *given: Any) -> None:
            lines.append(text % given if given else text)

        warning = info

        def debug(self, text: str, *given: Any) -> None:
            """Not shown."""

    monkeypatch.setattr(SpillwayOperator, "log", Log())
    return lines


@pytest.mark.parametrize("answer", [answering(status(None)), answering(None, 3, "no broker")])
def test_a_day_that_is_not_sealed_is_waited_for_without_a_worker(
    fake: Fake, answer: str, told: list[str]
) -> None:
    fake(answer)
    task = WaitForSealOperator(task_id="wait", session=DAY, every_s=3.0, config="x.toml")
    with pytest.raises(TaskDeferred) as it:
        task.execute({})
    trigger = it.value.trigger
    assert isinstance(trigger, SealedTrigger)
    assert (trigger.session, trigger.config, trigger.every_s) == (DAY, "x.toml", 3.0)
    assert told[-1] == (
        f"{DAY} is not sealed yet. The triggerer looks every 3 s; no worker is held meanwhile."
    )
    event = {"session": DAY, "ended_at": "then", "stage": "sealed"}
    assert getattr(task, it.value.method_name)({}, event) == event


@pytest.mark.parametrize(
    ("session", "stage", "lag", "age", "says"),
    [
        (DAY, "open", 1234, 3.2, "has not read its seal yet; 1,234 rows wait in Kafka, the last"),
        (DAY, "ending", 0, 61.0, "its end is fixed, .*; 0 rows wait in Kafka, .* was 61 s ago$"),
        (DAY, "ending", None, None, "Kafka does not answer, there was no epoch yet"),
        ("2026-01-07", "open", 0, 1.0, "not in the journal yet: the session before it"),
    ],
)
def test_it_says_what_a_seal_waits_for(
    session: str, stage: str, lag: int | None, age: float | None, says: str
) -> None:
    day = {"session": DAY, "ended_at": None, "stage": stage}
    found = {"sessions": [day], "lag_rows": lag, "last_epoch_age_s": age}
    assert re.search(says, waits_for(found, session))


def test_the_trigger_fires_once_the_day_is_sealed(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A look that fails, two at a day that is open, one that is sealed."""
    looks = tmp_path / "looks"
    fake(
        f"with open({str(looks)!r}, 'a') as file: file.write('x')\n"
        f"n = os.path.getsize({str(looks)!r})\n"
        "if n == 1: sys.exit('no journal')\n"
        f"print({json.dumps(status(None))!r} if n < 4 else {json.dumps(status('then'))!r})"
    )

    async def events() -> list[Any]:
        return [event async for event in SealedTrigger(DAY, every_s=0.01).run()]

    [event] = asyncio.run(asyncio.wait_for(events(), 30))
    assert event.payload == {"session": DAY, "ended_at": "then", "stage": "sealed"}
    assert looks.read_text() == "xxxx"
    said = capsys.readouterr().out
    assert said.count("1,234 rows wait in Kafka") == 1, "every minute, not at every look"


VERDICT = {
    "complete": False,
    "missing": 7,
    "doubled": 1,
    "expected": 9_000,
    "run_time": 7_000,
    "cleanup": 2_000,
    "details": {"keys": 3},
}


def test_a_day_that_is_not_complete_fails_for_good(fake: Fake) -> None:
    fake(answering(VERDICT, 1))
    with pytest.raises(
        AirflowFailException,
        match=f"{DAY} is not complete: of 9,000 results 7 are missing and 1 doubled",
    ):
        VerifyOperator(task_id="verify", session=DAY).execute({})


def test_a_day_whose_input_is_lost_ends_its_run_without_being_complete(fake: Fake) -> None:
    """The task is skipped: what waits for complete days hears nothing."""
    unknown = dict.fromkeys(("expected", "missing", "doubled"))
    details = {"problems": ["input is lost: stock/0"], "differences": [], "loss": {"by": "ada"}}
    fake(answering({**VERDICT, **unknown, "details": details}, 1))
    with pytest.raises(AirflowSkipException, match=f"{DAY} cannot be proved .* stock/0"):
        VerifyOperator(task_id="verify", session=DAY).execute({})


def test_what_a_day_lacks_is_in_the_log(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    lacks = {
        "key": {"symbol": "ACME"},
        "coordinates": {
            "stock": {"partition": 1, "offset": 70},
            "volume": {"partition": 0, "offset": 4},
        },
        "found": 0,
        "expected": 1,
    }
    details = {"problems": ["the journal names more rows"], "differences": [lacks]}
    fake(answering({**VERDICT, "details": details}, 1))
    with pytest.raises(AirflowFailException):
        VerifyOperator(task_id="verify", session=DAY).execute({})
    errors = [line for line in capsys.readouterr().out.splitlines() if "[error" in line]
    assert len(errors) == 2
    assert "the journal names more rows" in errors[0]
    assert "symbol ACME: stock 1:70, volume 0:4 (partition:offset): found 0, not 1" in errors[1]


def test_a_proof_that_was_not_made_is_tried_again(fake: Fake) -> None:
    fake(answering(None, 3, "Kafka does not answer"))
    with pytest.raises(CommandFailed, match="Kafka does not answer") as it:
        VerifyOperator(task_id="verify", session=DAY).execute({})
    assert not isinstance(it.value, AirflowFailException), "Airflow tries again"


def test_a_complete_day_gives_its_figures(fake: Fake, told: list[str]) -> None:
    fake(answering({**VERDICT, "complete": True}))
    found = VerifyOperator(task_id="verify", session=DAY).execute({})
    assert found["complete"] is True
    assert "details" not in found
    assert not [line for line in told if line.startswith("{")], "words, not a line of JSON"
    assert told[-1] == (
        f"{DAY} is complete: 9,000 results, 7,000 at run time and 2,000 by cleanup; "
        "none missing, none doubled"
    )
    stands = f"{DAY} was proved complete before"
    fake(answering({**VERDICT, "complete": True, "details": {"stands": stands}}))
    VerifyOperator(task_id="verify", session=DAY).execute({})
    assert stands in told


def test_the_figures_of_a_corrected_day_add_up(fake: Fake, told: list[str]) -> None:
    details = {"corrections": {"revisions": 2, "rows": 9, "results": 2_415}}
    fake(answering({**VERDICT, "expected": 11_415, "complete": True, "details": details}))
    VerifyOperator(task_id="verify", session=DAY).execute({})
    assert told[-1] == (
        f"{DAY} is complete: 11,415 results, 7,000 at run time, 2,000 by cleanup and 2,415 by "
        "corrections; none missing, none doubled"
    )


def test_a_killed_task_ends_its_command(fake: Fake) -> None:
    fake("time.sleep(60)")
    task = CleanupOperator(task_id="cleanup", session=DAY)
    task.on_kill()  # before it began: no harm

    def kill() -> None:
        while task._running is None:
            time.sleep(0.01)
        task.on_kill()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with pytest.raises(CommandFailed, match="code -15"):
        task.execute({})
    killer.join()


# --- which session -----------------------------------------------------------------------------


def rendered(made: datetime, partition: str | None = None, **params: Any) -> str:
    """The session of a run that was made then, of a task as Airflow renders it."""
    task = SealOperator(task_id="seal")
    context: Any = {
        "partition_key": partition,
        "params": params,
        "dag_run": SimpleNamespace(run_after=made),
    }
    task.render_template_fields(context, Environment(autoescape=False))
    return task.session


@pytest.mark.parametrize(
    ("made", "partition", "params", "session"),
    [
        ("2026-01-06T12:00", "2025-12-01", {"session": "2025-12-02"}, "2025-12-01"),
        ("2026-01-06T12:00", None, {"session": "2025-12-02"}, "2025-12-02"),
        ("2026-01-06T12:00", None, {"session": None}, DAY),
        ("2026-01-06T20:59", None, {}, DAY),  # a minute before the close in New York
        ("2026-01-06T21:00", None, {}, "2026-01-06"),
        ("2026-01-07T02:00", None, {}, "2026-01-06"),  # tomorrow by UTC
        ("2026-01-11T12:00", None, {}, "2026-01-09"),  # a Sunday
    ],
)
def test_a_run_that_names_no_session_means_the_last_that_has_closed(
    made: str, partition: str | None, params: dict[str, Any], session: str
) -> None:
    assert (
        rendered(datetime.fromisoformat(made).replace(tzinfo=UTC), partition, **params) == session
    )


def test_a_session_that_is_no_date_fails_without_a_retry() -> None:
    made = datetime(2026, 1, 6, tzinfo=UTC)
    with pytest.raises(AirflowFailException, match="is not a session's date: write 2026-01-05"):
        rendered(made, "2026-1-5")
    with pytest.raises(AirflowFailException, match="'tomorrow' is not a session's date"):
        rendered(made, None, session="tomorrow")


def test_a_session_that_cannot_be_found_is_asked_for() -> None:
    with pytest.raises(AirflowFailException, match="partition key or parameter `session`"):
        rendered(datetime(1950, 1, 1, tzinfo=UTC))
    task = SealOperator(task_id="seal", calendar="nowhere")
    made = SimpleNamespace(run_after=datetime.now(UTC))
    with pytest.raises(AirflowFailException, match=r"YYYY-MM-DD.*not an exchange calendar"):
        task.render_template_fields({"params": {}, "dag_run": made}, Environment(autoescape=False))
