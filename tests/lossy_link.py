"""A link that loses packets: `python -m tests.lossy_link PID PORT PID PORT SHARE`.

A TAP device in each of two networks (those of the processes), and this process as the cable
between them: it carries frames from one to the other, and drops a share of them each way. `?` on
its standard input is answered with how many frames came and how many it dropped; at its end the
process ends, and the devices go with it.
"""

from __future__ import annotations

import fcntl
import os
import random
import selectors
import struct
import sys

from tests.hosts import enter_network

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME = 1 << 16
SEED = 1


def device(pid: int, name: str) -> int:
    """A new TAP device in the network of a process."""
    with open(f"/proc/{pid}/ns/net") as there:
        enter_network(there.fileno())
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return file


def carry(one: int, other: int, share: float) -> None:
    """Carry frames until the standard input ends."""
    rng = random.Random(SEED)
    came = dropped = 0
    with selectors.DefaultSelector() as ready:
        for file in (one, other, sys.stdin.fileno()):
            ready.register(file, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fd == sys.stdin.fileno():
                    if not os.read(key.fd, 64):
                        return
                    os.write(sys.stdout.fileno(), f"{came} {dropped}\n".encode())
                    continue
                came += 1
                frame = os.read(key.fd, FRAME)
                if rng.random() < share:
                    dropped += 1
                    continue
                try:
                    os.write(other if key.fd == one else one, frame)
                except OSError:  # an end that is not up takes none: the frame is lost, too
                    dropped += 1


if __name__ == "__main__":
    first, second = ((int(sys.argv[n]), sys.argv[n + 1]) for n in (1, 3))
    ends = device(*first), device(*second)
    print("ready", flush=True)
    carry(*ends, float(sys.argv[5]))
