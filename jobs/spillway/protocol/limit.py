"""How many results a session may have at run time (`results.max_per_session`).

The limit stops intake, and what comes back of spilled generations, and nothing else. Once the
results of an open session have reached it, no epoch reads a row or brings one back until a driver
claims with a higher limit, or the session is sealed where it stands. Nothing is lost: the rows wait
in Kafka. Commands are obeyed: groups move, seals are accepted and taken back. A seal whose end lies
beyond what was read waits, too. So does an accepted loss, after which reading goes on elsewhere: it
is answered when a stream starts, whatever its limit.

What is counted are the results that the journal has, whole epochs: the epoch that reaches the limit
may pass it by what it gives itself. Cleanup's results are not counted: their rows were read, so
they are owed, and `cleanup --plan` says how many there are before any is written.

The limit is the driver's, from its claim on. So what holds a stream, and what people see, follow
from the journal alone, and a start with another limit needs no epoch to be believed.
"""

from __future__ import annotations

from spillway.protocol.offsets import reaches
from spillway.protocol.state import JournalState


def intake_held(state: JournalState) -> str:
    """Why no row may be read now, and what to do; empty: rows may be read."""
    most = state.max_results
    full = [each for each in state.sessions if most and each.results >= most]
    if not full:
        return ""
    return (
        f"{full[0].date} has {full[0].results:,} results, and results.max_per_session is {most:,}: "
        "no more rows are read. They wait in Kafka, and nothing is lost. Start the stream again "
        f"with a higher limit{_or_else(state, full[0].date)}"
    )


def limit_ratio(state: JournalState) -> float | None:
    """The most results that a session which is not sealed has, as a part of the limit: 1 or more
    where `intake_held`. None: there is no limit."""
    if not state.max_results:
        return None
    return max(each.results for each in state.sessions) / state.max_results


def _or_else(state: JournalState, full: str) -> str:
    """What else there is to do than to raise the limit."""
    open_ = state.session.date
    if full != open_:
        return f": {open_} is not sealed yet, so {full} cannot be"
    here = f"`spillway seal --session {open_} --at read`"
    if state.seal is None:
        return f", or end the session here with {here}"
    if reaches(state.end, state.seal.end):
        return ""
    return f", or end the session here: `spillway seal --session {open_} --withdraw`, then {here}"
