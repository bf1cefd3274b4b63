"""Exit codes of the command line.

An error that a line explains says its own as `exit_code`. Any other ends with 3, and its traceback
is kept in a file.
"""

from __future__ import annotations

NOT_COMPLETE = 1
"""`verify`: results are missing or doubled."""
USAGE = 2
"""What was asked for makes no sense."""
FAILED = 3
NOTHING_YET = 4
"""There is no warehouse, or nothing in its journal, yet."""
INTERRUPTED = 130
"""Ctrl-C, as shells have it."""
