"""The check of an object store: can it be written, and is it safe for commits?"""

from __future__ import annotations

import time

from spillway.doctor.check import Check
from spillway.storage import StorageError, folder
from spillway_schemas.settings import Settings

SLOW_S = 1.0
"""An epoch makes dozens of requests one after another: see docs/deployment.md."""
REQUESTS = 6
"""Of a trial: two puts, a look at what is there, two listings, a deletion."""
NAME = "warehouse"


def object_store(settings: Settings) -> Check:
    """Try whether what may be written once is written once; nothing stays behind."""
    place, began = settings.warehouse, time.monotonic()
    try:
        folder(place.root, place.options).assure_safe()
    except ValueError as error:
        return Check(NAME, "fail", str(error), "mend warehouse.root and warehouse.options")
    except StorageError as error:
        what, _, mend = str(error).rpartition(": ")
        return Check(NAME, "fail", what, mend)
    return judge_store(place.root, time.monotonic() - began)


def judge_store(root: str, seconds: float) -> Check:
    """A store that is safe, by how long its requests took."""
    each_s = seconds / REQUESTS
    if each_s > SLOW_S:
        return Check(
            NAME,
            "warn",
            f"{root} is slow: a request took {each_s:.1f} s",
            "every epoch waits for dozens: use a store in the same region, or a local disk",
        )
    return Check(NAME, "ok", f"{root} (conditional puts work, {1000 * each_s:.0f} ms a request)")
