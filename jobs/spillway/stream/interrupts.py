"""How `spillway stream` (and `relay`) is asked to stop: SIGTERM, Ctrl-C, Ctrl-C again.

Model: the first signal sets an event, which the stream looks at between two epochs. A second
Ctrl-C ends the process on the spot. That is a crash like any other, so nothing is lost; Spark's
JVM ends when the pipe from this process breaks, and its workers end with it.

Trap: pyspark puts a SIGINT handler of its own in place, which cancels the jobs that run, but only
when a context is made on the main thread. So the stream makes it on another one. The JVM is
started with SIGINT ignored, ignores SIGTERM once the session is there, and the workers' daemon
leads a process group of its own, so a signal to the stream's group reaches nobody else.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from spillway_schemas.exits import INTERRUPTED

_FIRST = {
    signal.SIGTERM: "stopping after the {} under way\n",
    signal.SIGINT: "stopping after the {} under way; Ctrl-C again ends at once\n",
}
_SECOND = "ended at once; nothing is lost, the {} under way is read again at the next start\n"
_STDERR = 2
HUSH_S = 2.0
"""How long a JVM that does not answer may hold up the end."""


def stop_on_signals(stop: threading.Event, what: str = "epoch") -> None:
    """Set `stop` on SIGTERM and Ctrl-C; end this process on the second Ctrl-C. Main thread only.

    `what`: the piece of work that is finished before the end.
    """

    own = os.getpid()

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if os.getpid() != own:
            return  # a child between fork and exec, which the terminal's Ctrl-C reaches, too
        if number == signal.SIGINT and stop.is_set():
            _say(_SECOND.format(what).encode())
            # On a thread of its own: this one may be in the middle of a call to the JVM.
            hushing = threading.Thread(target=_hush, daemon=True)
            hushing.start()
            hushing.join(HUSH_S)
            os._exit(INTERRUPTED)
        if not stop.is_set():
            stop.set()
            _say(_FIRST[signal.Signals(number)].format(what).encode())

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)


def _hush() -> None:
    """Let Spark's JVM, if there is one, tell the terminal nothing of its own end."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    jvm = getattr(context, "_jvm", None)
    if jvm is not None:
        nothing = jvm.java.io.OutputStream.nullOutputStream()
        jvm.java.lang.System.setErr(jvm.java.io.PrintStream(nothing))
        off = jvm.org.apache.logging.log4j.Level.OFF
        jvm.org.apache.logging.log4j.core.config.Configurator.setAllLevels("", off)


def _say(text: bytes) -> None:
    """Write past Python's buffers: a handler may have interrupted a write into them."""
    try:
        os.write(_STDERR, text)
    except OSError:
        pass  # a terminal that is gone: there is nobody to tell
