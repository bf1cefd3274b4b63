"""An attempt at an epoch has failed: is another one worth making?

Nothing of a failed attempt is journaled, so trying again is always safe. But each attempt leaves
the files behind that its tasks had finished, which only `maintain` may delete, a day later; and
what fails the same way each time holds up the stream without saying so.

* *A process, a host, Kafka or the schema registry went away*: another attempt may well succeed; up
  to `MAX_ATTEMPTS`.
* *The code raised*: a repeated attempt reads its rows another way, in smaller batches, and hands
  nothing over within a host, so the first error says little. The same one `SAME_ERRORS` times in
  a row is a bug or a row that cannot be processed.
* *A folder cannot be written*: more attempts would fill it further. None is made.
* *Kafka does not hold rows any more that the epoch reads*: it will not, until a person says that
  they are gone for good. None is made.
* *A topic was deleted, and perhaps made again*: its offsets mean other rows now. None is made.
* *What schemas mean cannot be known* (the registry does not let us in, what was kept of it is
  damaged): that is not mended by trying. No other attempt is made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from spillway.protocol.plan import Plan

MAX_ATTEMPTS = 8
"""Attempts at one epoch before the driver gives up and says why."""
SAME_ERRORS = 3
"""Attempts in a row that end with one and the same error of the code before it gives up."""

_VARYING = re.compile(r"[0-9a-f]{8,}|\d+")
"""What tells two attempts' texts of one error apart: names of files, process ids, times."""


@dataclass(frozen=True)
class JobFailed:
    """The job raised: no report counts."""

    detail: str
    cause: Literal["lost", "raised", "storage", "gone", "deleted", "schemas"] = "lost"
    """A process, a host or Kafka went away; the code raised; a folder cannot be written; rows are
    gone; a topic is; what schemas mean cannot be known."""


def give_up(plan: Plan, attempts: int, failures: Sequence[JobFailed]) -> str | None:
    """Why the epoch is not tried again, after its last failure; None: try again.

    `failures`: of this epoch, oldest first. `attempts` counts those that found state missing too.
    """
    last = failures[-1]
    if last.cause == "storage":
        return (
            f"epoch {plan.epoch} has failed: {last.detail}. Nothing from it was committed. It is "
            "not tried again, because every attempt leaves files behind: mend that, run "
            "`spillway doctor`, and start again"
        )
    if last.cause == "gone":
        again = plan.restore is not None or plan.carry is not None
        return (
            f"epoch {plan.epoch} has failed: Kafka does not hold rows any more that "
            f"{'must be read again for it' if again else 'it reads'}: {last.detail}. Nothing from "
            "it was committed. It is not tried again. Where nobody has these rows any more, go on "
            f"without them: `spillway accept-loss --session {plan.session} --reason ...`, and "
            "start again"
        )
    if last.cause == "deleted":
        return f"epoch {plan.epoch} has failed: {last.detail}. Nothing from it was committed"
    if last.cause == "schemas":
        return (
            f"epoch {plan.epoch} has failed: {last.detail}. Nothing from it was committed, and no "
            "message went to quarantine for it: mend that, run `spillway doctor`, and start again"
        )
    recent = failures[-SAME_ERRORS:]
    same = {_VARYING.sub("#", failure.detail) for failure in recent}
    if len(recent) == SAME_ERRORS and len(same) == 1 and all(f.cause == "raised" for f in recent):
        return (
            f"epoch {plan.epoch} failed {SAME_ERRORS} times in a row with the same error: "
            f"{last.detail}. It reads {rows_of(plan)}. Nothing from it was committed. Either one "
            "of these rows cannot be processed, or this is a bug: keep last-error.txt and report it"
        )
    if attempts >= MAX_ATTEMPTS:
        return (
            f"epoch {plan.epoch} failed {attempts} times: {last.detail}. It reads {rows_of(plan)}. "
            "Nothing from it was committed"
        )
    return None


def rows_of(plan: Plan) -> str:
    """The offsets that an epoch reads, for people: `stock/0 from 120 to 180, ...`."""
    parts = []
    for topic, ends in sorted(plan.end.items()):
        for partition, (start, end) in enumerate(zip(plan.start[topic], ends, strict=True)):
            if end > start:
                parts.append(f"{topic}/{partition} from {start} to {end - 1}")
    return ", ".join(parts) or "no new rows"
