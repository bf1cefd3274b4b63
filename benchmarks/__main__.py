"""`make bench`: the comparison side by side."""

from __future__ import annotations

import sys

from benchmarks.side_by_side.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
