"""PyArrow without pandas, which it imports by itself where that is installed."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec


def arrow_alone() -> None:
    """Have PyArrow look for pandas now, and find none. Called before its first array is made.

    It looks once, for the sake of values that are pandas' own, and that import takes 0.25 seconds
    of a core in every process. Others find pandas as before, and so does PyArrow where it is asked
    to convert to it.
    """
    import pyarrow as pa

    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)


class _NoPandas:
    """Has the import system find no pandas."""

    @staticmethod
    def find_spec(name: str, *_: object) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not looked for", name=name)
        return None
