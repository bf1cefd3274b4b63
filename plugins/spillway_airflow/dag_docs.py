"""What Airflow shows of each DAG: what it does, what to do when it fails, what its form offers."""

from __future__ import annotations

from typing import NamedTuple, get_args

from spillway_airflow.sections import SPILLWAY, setting
from spillway_schemas.setting_fields import RebalanceSettings

POLICIES: tuple[str, ...] = get_args(RebalanceSettings.model_fields["policy"].annotation)
"""What `rebalance.policy` may be."""


class Described(NamedTuple):
    """A DAG in words."""

    does: str
    fails: str
    """What to do then."""
    pages: tuple[str, ...]
    """Where more stands, the runbook's section first: pages of the documentation with anchors."""


DAGS = {
    "market_open": Described(
        "Runs before each open, and may be run by hand at any hour.\n\n"
        "1. `topics` makes the query's topics that do not exist; it changes no other, and fails "
        "for one that was read and is gone, or was made anew.\n"
        "2. `doctor` checks everything that the stream needs.\n"
        "3. `ensure_stream` starts the stream when it does not run, and waits until it works.",
        "`doctor`'s log has a line for each check, with what to do. Mend it, then clear the "
        "task. A stream that works is left alone, so clearing does no harm.",
        ("runbook.md#the-stream-has-ended",),
    ),
    "rebalance": Described(
        "Runs while the market is open, one run at a time: the controller looks at memory, load "
        "and expected losses, and asks the stream for moves, spills, splits or merges. The stream "
        "obeys or refuses each at its next epoch. Results never depend on it, only speed.\n\n"
        "`dry_run` says what would be asked for, and why not more; `policy` tries another policy.",
        "A failed run asked for nothing, and the next one looks again. To stop the controller, "
        "pause the DAG.",
        (
            "runbook.md#memory-stays-near-the-budget",
            "airflow.md#the-controller-has-decided-wrongly",
        ),
    ),
    "stream_watch": Described(
        "Looks every minute: starts a stream that is gone, restarts one that stands still while "
        "rows wait, and reports days that are not sealed or not proved complete in time.",
        "The message says which it is: `restart` needs a look at the stream's log when it comes "
        "again and again; `not sealed` and `not complete` name the day.",
        ("runbook.md#rows-wait-and-no-epoch-comes", "airflow.md#the-stream-stands-still"),
    ),
    "market_close": Described(
        "Brings one session to its end, after its close; one run a session, in order.\n\n"
        "1. `seal` fixes where the day's input ends.\n"
        "2. `wait_for_seal` waits until the stream has read that far. No worker is held.\n"
        "3. `cleanup` appends the results that spilling has left out, each once.\n"
        "4. `verify` proves the day complete from the raw topics. Then the day counts as "
        "complete.\n\n"
        "By hand: trigger it with the session's date as partition key, or as parameter `session`. "
        "With neither it is for the last session that has closed. `at` = `now` ends the day at "
        "once.",
        "Each task may be cleared and run again: nothing is doubled. `seal` and `wait_for_seal` "
        "need a stream that runs. `cleanup` goes on where it was. When `verify` says that "
        "results are missing, its log names them; clearing it again does not help. A seal that was "
        "a mistake can be withdrawn on the page, as long as the stream has not passed its end.",
        (
            "runbook.md#the-normal-close",
            "runbook.md#verify-says-1",
            "runbook.md#a-seal-was-a-mistake",
            "airflow.md#a-day-is-not-complete",
        ),
    ),
    "maintenance": Described(
        "Runs at night: drops spilled rows and old figures of days that are proved complete, "
        "merges small files, deletes files that no table names. Kafka's topics are never "
        "touched. It may run beside the stream.\n\n`dry_run` says what would be done.",
        "Clear it: what was done stays, and it goes on.",
        ("runbook.md#every-night",),
    ),
}


def described(name: str, section: str = SPILLWAY) -> str:
    """A DAG's documentation in Markdown."""
    each = DAGS[name]
    base = setting("docs_url", section)
    more = ", ".join(_link(page, base) for page in each.pages)
    return (
        f"Runbook: {more}. Live: [the warehouse's page](/plugin/{section}/{section}/).\n\n"
        f"{each.does}\n\n**When it fails.** {each.fails}\n"
    )


def _link(page: str, base: str | None) -> str:
    """A section of the documentation: a link where it is served, otherwise where it stands."""
    file, _, anchor = page.partition("#")
    words = anchor.replace("-", " ")
    if base is None:
        return f"{words} (`docs/{file}`)"
    return f"[{words}]({base.rstrip('/')}/{file.removesuffix('.md')}.html#{anchor})"
