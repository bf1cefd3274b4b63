"""`spillway cleanup --plan`: what a cleanup has before it, and about how long it will take.

Reads the journal, the tables' logs, and hashes and epochs of what was spilled; changes nothing and
starts no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from spillway.cleanup.work import work_of
from spillway.cleanup.workers import processes_for
from spillway.decode import StreamPlan
from spillway.engine.join.tree import TreeSpec
from spillway.engine.spill.counting import ToAdd, results_to_add
from spillway.engine.spill.source import SpillIndex, SpillSource
from spillway.engine.spill.spillfile import row_groups
from spillway.protocol.deferral import rows_to_read
from spillway.report.words import bytes_text, count_text, span_text
from spillway.tables import Warehouse
from spillway_schemas.setting_fields import own_cores

START_S = 1.5
"""Until processes have started."""
CORE_US = 0.9
"""Of one core, for a spilled row as for a missing result: 5,522,141 and 8,879,981 of them took two
cores 8.0 s, start included (`docs/measured.md`). On another day they took 5.6 s; of five times as
many rows, on a slower machine, it says 34 s where 41 and 51 were measured."""


@dataclass(frozen=True)
class CleanupAhead:
    """What is left to do, of a session whose groups, generations and spilled rows are told as a
    whole. Counts are of rows; None: it is known only when it is done."""

    session: str
    cleaned: bool
    """Then nothing is left."""
    run_time: int
    """Results that the session had when it was sealed."""
    added: int
    """Results that cleanup has added to them so far."""
    ranges_total: int
    ranges_left: int
    groups: int
    """Different ranges of hashes that were cut."""
    generations: int
    """Cuts of the session."""
    files: int
    spilled_rows: int
    spilled_bytes: int
    """As they lie on disk."""
    rows_in_kafka: int
    """To be read there again, for slots had lost them."""
    missing: int | None
    """Results that will be added. Not known of trees, of joins with windows, and where rows must be
    read in Kafka first."""
    seconds: float | None
    """About how long it will take; None, too, where the cluster says how many cores there are."""
    unmatched: int | None = None
    """Results without optional rows that will be added beside those; None, too, for an inner join:
    it has none."""


def look_ahead(
    warehouse: Warehouse,
    spec: TreeSpec,
    session: str,
    *,
    fingerprint: str,
    cores: int | None,
    streams: Collection[StreamPlan] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> CleanupAhead:
    """See what a cleanup has before it.

    `cores`: that cleanup may use (`cores_of`); `streams`: the query's, where an outer join has lost
    input: without them that is refused; `tell` hears of what takes long.

    Raises `NothingYet`, `CleanupRefused` (not sealed, tables behind, no `streams` where they are
    needed) and `SpillDamaged`.
    """
    work = work_of(warehouse, session, fingerprint)
    sealed = work.sealed
    ranges = sealed.ranges
    left = [] if work.cleaned else ranges[warehouse.cleanup_applied(session) + 1 :]
    files = (*work.files, *work.stored)
    again = 0
    if work.again is not None and warehouse.deferred_applied(session) < 0:
        again = rows_to_read(work.again)
    outer = spec.root.is_outer
    add: ToAdd | None = ToAdd(0, 0)
    if left and (again or work.ends is not None or len(spec.joins) > 1):
        add = None
    elif left:
        tell(f"counting the missing results of {sealed.spilled_rows:,} spilled rows")
        place = warehouse.folder("spill")
        index = SpillIndex.of([(file, row_groups(place, file, 0)) for file in files])
        doubtful = work.doubtful(warehouse, spec.root, streams)
        source = SpillSource(place, index, spec, voided=work.voided, doubtful=doubtful)
        add = results_to_add(source, left)
    share = len(left) / len(ranges) if ranges else 0.0
    spilled_bytes = sum(file.bytes for file in files)
    return CleanupAhead(
        session=session,
        cleaned=work.cleaned is not None,
        run_time=sealed.results,
        added=sum(file.rows for file in warehouse.files("results", session)) - sealed.results,
        ranges_total=len(ranges),
        ranges_left=len(left),
        groups=work.cut_ranges,
        generations=sealed.generations,
        files=len(files),
        spilled_rows=sealed.spilled_rows,
        spilled_bytes=spilled_bytes,
        rows_in_kafka=again,
        missing=None if add is None else add.missing,
        seconds=_seconds(
            share * sealed.spilled_rows,
            None if add is None else sum(add),
            None if cores is None else processes_for(spilled_bytes, cores),
        ),
        unmatched=add.unmatched if add is not None and outer else None,
    )


def cores_of(master: str) -> int | None:
    """The cores that cleanup has with this `spark.master`; None: those of a cluster."""
    found = re.fullmatch(r"local\[(\d+|\*)(?:,.*)?\]|local-cluster\[(\d+),(\d+),.*\]", master)
    if found is None:
        return None
    threads, workers, cores = found.groups()
    if workers:
        return int(workers) * int(cores)
    return own_cores() if threads == "*" else int(threads)


def _seconds(rows: float, results: int | None, processes: int | None) -> float | None:
    """About how long so many spilled rows and results to add take."""
    if results is None or processes is None:
        return None
    if not rows and not results:
        return 0.0
    start = START_S if processes > 1 else 0.0
    return round(start + (rows + results) * CORE_US / 1e6 / processes, 1)


def ahead_lines(ahead: CleanupAhead) -> list[tuple[str, str]]:
    """The plan for people: labels and values."""
    if ahead.cleaned:
        return [("to do", "nothing: the session is cleaned")]
    if not ahead.ranges_left:
        return [("to do", "nothing was spilled, so nothing is missing")]
    rows = [
        ("ranges to do", f"{ahead.ranges_left:,} of {ahead.ranges_total:,}"),
        ("groups that were spilled", f"{ahead.groups:,}"),
        ("generations", f"{ahead.generations:,}"),
        ("spilled rows", f"{ahead.spilled_rows:,}"),
        ("in files", f"{ahead.files:,}, {bytes_text(ahead.spilled_bytes)}"),
    ]
    if ahead.rows_in_kafka:
        rows.append(("rows to read again in Kafka", f"{ahead.rows_in_kafka:,}"))
    known = "known after cleanup" if ahead.missing is None else count_text(ahead.missing)
    rows.append(("missing results", known))
    if ahead.unmatched is not None:
        rows.append(("unmatched results", count_text(ahead.unmatched)))
    if ahead.seconds is not None:
        short = ahead.seconds < 1
        rows.append(("takes about", "less than a second" if short else span_text(ahead.seconds)))
    return rows


def ahead_text(ahead: CleanupAhead) -> list[str]:
    """The same as lines, the values below each other."""
    lines = ahead_lines(ahead)
    width = max(len(label) for label, _ in lines)
    return [f"{label:<{width}}  {value}" for label, value in lines]


def beyond_limit(ahead: CleanupAhead, most: int) -> str:
    """What to say where run time and cleanup together pass `results.max_per_session`; or empty."""
    rest = None if ahead.missing is None else ahead.missing + (ahead.unmatched or 0)
    if not most or rest is None or ahead.cleaned:
        return ""
    if ahead.run_time + ahead.added + rest <= most:
        return ""
    before = f" and {count_text(ahead.added)} that cleanup has added" if ahead.added else ""
    return (
        f"with {count_text(ahead.run_time)} at run time{before} that is more than "
        f"results.max_per_session ({count_text(most)}), which stops intake only: these rows were "
        "read, so cleanup gives all of their results"
    )
