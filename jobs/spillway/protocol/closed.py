"""The whole input of a session that is closed, read again as it was read then.

From one epoch's boundary to another's, as everything that is read again, so that counts and digests
can be held against the journal; rows before the session's first and from its end on are left out.
Rows are judged by the watermarks of their time.
"""

from __future__ import annotations

from collections.abc import Sequence

from spillway.protocol.deferral import read_by
from spillway.protocol.offsets import padded
from spillway.protocol.recovery import Restore, SessionRestore, watermarks_of
from spillway_schemas.journal import Claim, Epoch, Genesis, Sealed


def whole_session(
    genesis: Genesis, sealed: Sealed, entries: Sequence[Genesis | Claim | Epoch]
) -> Restore:
    """What has to be read for all rows of a session; whose `slots` it is for, the caller says.

    `entries`: all of the session, and that of its base.
    """
    every = [entry for entry in entries if isinstance(entry, Epoch)]
    epochs = [entry for entry in every if sealed.base < entry.epoch <= sealed.epoch]
    ends = {entry.epoch: entry.end for entry in every}
    ends[genesis.after] = dict(genesis.start)  # of a changed query, other topics than before
    last = ends[sealed.epoch]
    session = SessionRestore(
        session=sealed.session,
        start=padded(sealed.start, last),
        end=padded(sealed.end, last),
        cuts=(),
        watermarks=watermarks_of(sealed.session, epochs),
    )
    return Restore(
        slots=frozenset(),
        read_from=padded(ends[sealed.base], last),
        read_to=last,
        sessions=(session,),
        expected=tuple(read_by(last, epochs)),
    )
