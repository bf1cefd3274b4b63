"""Where things lie: the checkout, if there is one, and the variable folder.

Everything that is made at run time (jars, the embedded broker's data, the warehouse of a demo)
lies under one *variable folder*. `SPILLWAY_VAR` names it. Otherwise it is `var/` of the checkout
that this package runs from, and for an installed package the platform's folder for a user's data
(on Linux `~/.local/share/spillway`, or below `XDG_DATA_HOME`). It can be deleted whole while
nothing runs; `spillway setup` makes the jars again.
"""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_path

VAR_VARIABLE = "SPILLWAY_VAR"


def checkout() -> Path | None:
    """The root of the source tree that this package runs from; None when it was installed."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() else None


def var_folder() -> Path:
    """The variable folder, absolute; it need not exist yet."""
    if named := os.environ.get(VAR_VARIABLE, ""):
        return Path(named).expanduser().resolve()
    root = checkout()
    return user_data_path("spillway", appauthor=False) if root is None else root / "var"
