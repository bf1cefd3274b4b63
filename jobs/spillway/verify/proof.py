"""From a session's sealed entry to the verdict.

What is proved, from the sealed entry's offsets, the raw topics and the `results` table: the
results of the session are the join of its input, each exactly once, with the payload of their
input rows. The test per key is in `arithmetic`, its cost linear in input and results. What one join
should give is summed in one pass, without Spark (`single`); what a tree should give is folded leaf
into leaf (`trees`). Keys that fail are joined (`difference`), which names what is missing or too
many.

Also held against each other: results at run time with what the journal counted; rejected input
with the `quarantine` table (so that nothing was dropped on the way).

Outcomes: a `VerifyReport` (complete or not); `NotSealed`; `NotCleaned`; `InputGone` when Kafka no
longer holds the session's input: then nothing is known, and nothing is guessed. A session that was
proved complete before needs its input no more: that verdict stands as long as nothing is appended.

Known limitation: `difference` makes the whole cross product of a failing key.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cache, partial
from typing import Any, NamedTuple

from spillway.decode.chunks import COLUMNS
from spillway.kafka.client import cluster, demand_listener
from spillway.kafka.held import InputLoss, demand_cluster, input_losses
from spillway.protocol.offsets import padded, rows_between
from spillway.protocol.seal import carried_from, not_sealed
from spillway.protocol.state import check_query, genesis_of
from spillway.registry import SchemaTrouble
from spillway.sealed_input.decoding import TopicRanges
from spillway.sealed_input.timing import timing_of
from spillway.stream.messages import MessageSource
from spillway.tables import KeptCorrections, NothingYet, SessionEvent, Warehouse
from spillway.tables.events import standing_verdicts
from spillway.verify.frames import ProofFrames, ProofRequest, frames_of
from spillway.verify.progress import VerifyProgress, tasks_of
from spillway.verify.tasks import ResultsDamaged
from spillway.verify.verdicts import FEW_KEYS, Difference
from spillway_schemas.exits import FAILED
from spillway_schemas.journal import Claim, Epoch, Genesis, Sealed
from spillway_schemas.losses import AcceptedLoss, accepted_text
from spillway_schemas.query import Query
from spillway_schemas.secret import Options
from spillway_schemas.settings import RegistrySettings

EXAMPLES = 20
"""Differences that a report gives with their coordinates."""


class NotSealed(Exception):
    """The session is not sealed: its input is not complete, so neither can its results be."""

    exit_code = FAILED


class NotCleaned(Exception):
    """Results of the session are still missing: nothing is there to be proved yet."""

    exit_code = FAILED


class InputGone(Exception):
    """Kafka no longer holds the session's input: whether it is complete cannot be known."""

    exit_code = FAILED


@dataclass(frozen=True)
class VerifyReport:
    """The verdict on one session. Counts are of results."""

    session: str
    expected: int | None
    """None, as `missing` and `doubled`: input is lost, and nobody can know."""
    run_time: int
    cleanup: int
    missing: int | None
    doubled: int | None
    """Too many: repeated, altered, or of no input row. An altered result is also `missing`."""
    complete: bool
    details: dict[str, Any] = field(default_factory=dict)
    """`differences` (with coordinates), `problems` (sentences), `rejected`, `quarantined`,
    `keys`, `failing_keys`, `cleaned`, `seconds`; of an outer join `unmatched`, how many of the
    expected results lack optional rows; `joined_keys` where keys of a tree form a circle:
    the pairs of leaves whose keys were combined. Of a verdict that stands though the input is gone:
    `proved_at` (RFC 3339) and `stands`, which says so. Where input is lost: `problems`, `cleaned`,
    `seconds`, and `loss` (`AcceptedLoss`). Of a session that was corrected: `corrections`, with
    their number, their rows and the results that they have added, which `cleanup` leaves out."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as `spillway verify --json` prints it."""
        return asdict(self)


def verify(
    start_spark: Callable[[], Any],
    warehouse: Warehouse,
    query: Query,
    session: str,
    *,
    bootstrap: str,
    client: Options | None = None,
    registry: RegistrySettings | None = None,
    exhaustive: bool = False,
    examples: int = EXAMPLES,
    salt: int | None = None,
    record: bool = True,
    progress: VerifyProgress | None = None,
    cores: int = 1,
) -> VerifyReport:
    """Prove a session complete, or say what is wrong with it.

    `start_spark` gives a session in UTC with Spark's Kafka source; it is called only where Spark
    proves (trees, windows), and where differences are to be named. `client`: Java client options.
    `registry`: for ids of schemas that the warehouse does not keep.
    `salt`: for tests; fresh by default. `record`: append the verdict to `sessions`. `progress` is
    told each step. `cores`: of this host, for what is proved without Spark.
    Raises `NothingYet`, `AnotherQuery`, `NotSealed`, `NotCleaned`, `AnotherCluster`, `InputGone`,
    `ResultsDamaged`, and KafkaUnavailable when no broker answers.
    """
    began = time.monotonic()
    warehouse.journal.refresh()
    state = warehouse.journal.state()
    if state is None:
        raise NothingYet(warehouse.place.path())
    if problem := not_sealed(state, session, warehouse.commands.unseen(state)):
        raise NotSealed(problem)
    sealed = state.sealed[session]
    genesis = genesis_of(state, sealed)
    check_query(genesis, query.fingerprint)
    _must_be_cleaned(warehouse, sealed)
    carried = sealed.carried
    # The first carried rows were judged by the watermark of the epoch before.
    since = sealed.base if carried is None else max(carried.since - 1, -1)
    entries = warehouse.journal.read_after(min(since, sealed.base))
    start = padded(carried_from(genesis, sealed, entries), sealed.end)
    timing = timing_of(genesis, sealed, entries)
    messages = MessageSource(bootstrap, client or {}).identified(genesis.topics)
    kept, added = _corrections(warehouse, session)
    rows = warehouse.correction_rows(kept, COLUMNS) if kept.last else None
    source = TopicRanges(messages, start, sealed.end, timing, rows)
    told = progress or VerifyProgress(session, lambda _: None)
    told.step("asking Kafka whether it still has the input")
    demand_listener(bootstrap)
    loss = warehouse.accepted_loss(genesis, sealed)
    with cluster(bootstrap, client) as view:
        gone = input_losses(view, genesis.topics, start, sealed.end)
        if loss is not None and loss.covers(each.lost for each in gone):
            report = _of_lost_input(warehouse, sealed, loss, added, time.monotonic() - began)
            if record:
                _record(warehouse, report, sealed)
            return report
        try:
            if standing := _standing(warehouse, session, gone):
                return standing
        except InputGone:
            # What another cluster lacks is not gone.
            demand_cluster(view, genesis.cluster_id, bootstrap)
            raise
    salt = secrets.randbits(63) if salt is None else salt
    try:
        with ExitStack() as ended:

            @cache
            def spark() -> Any:
                told.step("starting Spark")
                started = start_spark()
                ended.enter_context(_few_partitions(started))
                return started

            asked = ProofRequest(
                spark,
                warehouse,
                query,
                source,
                session,
                salt,
                cores,
                registry or RegistrySettings(),
            )
            frames = ended.enter_context(closing(frames_of(asked)))
            if warehouse.corrected_to(session) != kept.last:  # as the files were listed
                raise NotCleaned(f"{session} was corrected meanwhile: verify again")
            proof = _Proof(spark, frames, session, session in warehouse.sessions.cleaned())
            report = proof.report(entries, sealed, exhaustive, examples, told, added)
    except Exception as error:
        if not isinstance(error, ResultsDamaged) and (damaged := ResultsDamaged.told_by(error)):
            raise damaged from error
        if trouble := SchemaTrouble.told_by(error):
            raise trouble from error
        with cluster(bootstrap, client) as view:  # it may have gone while it was read
            gone = input_losses(view, genesis.topics, start, sealed.end)
        if standing := _standing(warehouse, session, gone):
            return standing
        raise
    report.details["seconds"] = round(time.monotonic() - began, 3)
    if record:
        _record(warehouse, report, sealed)
    return report


def _results_of(warehouse: Warehouse, session: str) -> int:
    """How many results the table has of a session."""
    return sum(file.rows for file in warehouse.files("results", session))


def _standing(warehouse: Warehouse, session: str, gone: Sequence[InputLoss]) -> VerifyReport | None:
    """The verdict of before on a session whose input is gone by now: that it is complete. None:
    nothing is gone.

    Raises `InputGone` where there is no such verdict, or the table does not have just the results
    that it counted.
    """
    if not gone:
        return None
    events = warehouse.sessions.history().events([session])
    last = standing_verdicts(events).get(session)
    if (
        last is None
        or not last.complete
        or last.expected is None
        or _results_of(warehouse, session) != last.expected
    ):
        raise _input_gone(gone[0], session)
    at = datetime.fromisoformat(last.written_at)
    return VerifyReport(
        session=session,
        expected=last.expected,
        run_time=last.run_time or 0,
        cleanup=last.cleanup or 0,
        missing=last.missing,
        doubled=last.doubled,
        complete=True,
        details={
            **last.details,
            "proved_at": last.written_at,
            "stands": (
                f"{session} was proved complete on {at:%Y-%m-%d at %H:%M} UTC, nothing was "
                f"appended since, and it needs its input no more ({gone[0].why})"
            ),
        },
    )


def _of_lost_input(
    warehouse: Warehouse,
    sealed: Sealed,
    loss: AcceptedLoss,
    added: AddedRows | None,
    seconds: float,
) -> VerifyReport:
    """The verdict on a session whose input is lost: it is not complete, and that is all."""
    results = _results_of(warehouse, sealed.session)
    ranges = "; ".join(map(str, loss.ranges))
    return VerifyReport(
        session=sealed.session,
        expected=None,
        run_time=sealed.results,
        cleanup=results - sealed.results - (0 if added is None else added.results),
        missing=None,
        doubled=None,
        complete=False,
        details={
            "differences": [],
            "problems": [
                f"input is lost, so nothing can be proved: {ranges}; "
                + accepted_text(loss.by, loss.reason)
            ],
            "cleaned": sealed.session in warehouse.sessions.cleaned(),
            "loss": loss.model_dump(),
            **({} if added is None else {"corrections": added._asdict()}),
            "seconds": round(seconds, 3),
        },
    )


def _input_gone(loss: InputLoss, session: str) -> InputGone:
    return InputGone(
        f"{loss.why}. Whether {session} is complete cannot be known. Keep input longer "
        "(`retention.ms`, `retention.bytes`) than until its `verify`. Where nobody has these "
        f"rows any more, end the day without them: spillway accept-loss --session {session} "
        "--reason ..."
    )


class AddedRows(NamedTuple):
    """What the corrections of a session have added, as `sessions` says."""

    revisions: int
    rows: int
    results: int


class _Proof:
    """One run of the proof."""

    def __init__(
        self, spark: Callable[[], Any], frames: ProofFrames, session: str, cleaned: bool
    ) -> None:
        self._spark = spark
        self._frames = frames
        self._session = session
        self._cleaned = cleaned

    def report(
        self,
        entries: Sequence[Genesis | Claim | Epoch],
        sealed: Sealed,
        exhaustive: bool,
        examples: int,
        told: VerifyProgress,
        added: AddedRows | None,
    ) -> VerifyReport:
        how_far = self._frames.how_far
        told.step(
            f"reading {rows_between(sealed.start, sealed.end):,} input rows and the results",
            how_far,
        )
        judged = self._frames.judged()
        totals = judged.totals
        found = Difference(0, 0, [])
        if totals["failing"] or exhaustive:
            spark = self._spark()
            how_far = partial(tasks_of, spark)
            which = "all" if exhaustive else f"the {totals['failing']:,} that fail"
            told.step(f"{totals['keys']:,} keys tested; joining {which}", how_far)
            few = not exhaustive and totals["failing"] <= FEW_KEYS
            found = self._frames.difference(
                spark.createDataFrame(judged.failing) if few else None, examples
            )
        problems = []
        if totals["failing"] and not (found.missing or found.doubled):
            problems.append(
                f"{totals['failing']} keys fail the test, but joining them finds no difference: "
                "the input or the table changed while they were read; verify again"
            )
        counted = sum(e.results.get(self._session, 0) for e in entries if isinstance(e, Epoch))
        if totals["run_time"] != counted or sealed.results != counted:
            problems.append(
                f"the table holds {totals['run_time']} run-time results, the journal's epochs "
                f"counted {counted}, its sealed entry says {sealed.results}"
            )
        if totals["rejected_wrong"]:
            problems.append(
                f"{totals['rejected']} input rows are rejected when they are decoded, and the "
                f"quarantine holds {totals['quarantined']} rows that are not just these"
            )
        return VerifyReport(
            session=self._session,
            expected=totals["expected"],
            run_time=totals["run_time"],
            cleanup=totals["cleanup"] - (0 if added is None else added.results),
            missing=found.missing,
            doubled=found.doubled,
            complete=not problems and not found.missing and not found.doubled,
            details={
                "differences": found.examples,
                "problems": problems,
                **({"unmatched": totals["unmatched"]} if "unmatched" in totals else {}),
                "keys": totals["keys"],
                "failing_keys": totals["failing"],
                "rejected": totals["rejected"],
                "quarantined": totals["quarantined"],
                "cleaned": self._cleaned,
                **({} if added is None else {"corrections": added._asdict()}),
                **({"joined_keys": joined} if (joined := self._frames.joined) else {}),
            },
        )


def _must_be_cleaned(warehouse: Warehouse, sealed: Sealed) -> None:
    """Raise `NotCleaned` when something was spilled and cleanup has not finished with it."""
    if sealed.ranges and sealed.session not in warehouse.sessions.cleaned():
        raise NotCleaned(
            f"the session {sealed.session} is sealed, but what was spilled is not joined yet: run "
            f"'spillway cleanup --session {sealed.session}', then verify again"
        )


def _corrections(warehouse: Warehouse, session: str) -> tuple[KeptCorrections, AddedRows | None]:
    """The corrections that the session's results have, and what they have added; None: there are
    none. Raises `NotCleaned` when one is not finished."""
    kept = warehouse.corrections(session)
    if not kept.last:
        return kept, None
    noted = warehouse.sessions.revisions(session)
    mine = [noted[n] for n in range(1, kept.last + 1) if n in noted]
    if kept.applied != kept.last or len(mine) != kept.last:
        raise NotCleaned(
            f"revision {kept.last} of {session} was begun and is not finished: run "
            f"'spillway correct --session {session}', then verify again"
        )
    rows, results = sum(each.rows for each in mine), sum(each.results for each in mine)
    return kept, AddedRows(kept.last, rows, results)


@contextmanager
def _few_partitions(spark: Any) -> Iterator[None]:
    """Shuffle into few partitions while the proof runs, for keys are small."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    spark.conf.set(name, str(max(4, 2 * spark.sparkContext.defaultParallelism)))
    try:
        yield
    finally:
        spark.conf.set(name, before)


def _record(warehouse: Warehouse, report: VerifyReport, sealed: Sealed) -> None:
    """Append the verdict to `sessions`."""
    warehouse.sessions.append(
        SessionEvent(
            session=report.session,
            event="verified",
            expected=report.expected,
            run_time=report.run_time,
            cleanup=report.cleanup,
            missing=report.missing,
            doubled=report.doubled,
            complete=report.complete,
            generations=sealed.generations,
            seconds=report.details["seconds"],
            details=report.details,
        )
    )
