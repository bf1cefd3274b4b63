"""Where things lie: the project's root and its variable folder.

Everything that is made at run time (jars, the embedded broker's data, the warehouse of a demo)
lies under one *variable folder*, `var/` of the project unless `SPILLWAY_VAR` names another. It
can be deleted whole while nothing runs; `make setup` makes the jars again.

Known limitation: the project runs from its source tree (an editable install, as `make setup`
makes it), because the lock of the jars lies at its root.
"""

from __future__ import annotations

import os
from pathlib import Path

VAR_VARIABLE = "SPILLWAY_VAR"


def project_root() -> Path:
    """The folder that holds `pyproject.toml` and `jars.lock`."""
    return Path(__file__).resolve().parent.parent


def var_folder() -> Path:
    """The variable folder, absolute; it need not exist yet."""
    named = os.environ.get(VAR_VARIABLE, "")
    return Path(named).expanduser().resolve() if named else project_root() / "var"
