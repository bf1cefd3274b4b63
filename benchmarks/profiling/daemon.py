"""The daemon that forks Spark's Python workers, with the stopwatches of `inside` in each.

Named by `spark.python.daemon.module`; Spark runs it as a program. The worker is prepared after
the fork, as Spark's own is: nothing that starts threads may be imported before it.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_original = daemon.worker


def _worker(sock: socket.socket, authenticated: bool) -> int:
    from benchmarks.profiling.inside import install

    install()
    code: int = _original(sock, authenticated)
    return code


if __name__ == "__main__":
    daemon.worker = _worker
    daemon.manager()
