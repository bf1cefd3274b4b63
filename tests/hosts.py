"""Hosts that are really several: `with hosts(folder, "host-a", "host-b") as network`.

Each host has namespaces of its own: an address that exists only in there, a name, a `/dev/shm`, and
processes that end with it. Another, the *front*, is the switch between them, and what is not theirs
runs there: Kafka, the object store, the driver. While the block runs this thread is in the front's
network, and so is what it starts; nothing is reachable from outside, and nothing reaches out.

    front (FRONT)  br0 --+-- veth --- host-a  eth0
                         +-- veth --- host-b  eth0
                         +-- tap  ~~ lossy_link ~~ tap  of a host whose packets get lost

A host ends when its first process does, and that ends when this process has gone, however it went.
Then the kernel takes its processes, addresses and links; no name of it is kept anywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

NET = "10.77.0"
FRONT = f"{NET}.1"
FRONT_NAME = "front"
BITS = 24
CLONE_NEWNET = 0x40000000
SPACES = ("--net", "--mount", "--uts")
PROCESSES = ("--pid", "--fork", "--kill-child", "--mount-proc")
NEEDED = "network namespace"
"""As `without` is told."""
TOOLS = ("ip", "unshare", "nsenter", "mount", "hostname")


@dataclass
class Host:
    """One of them."""

    name: str
    address: str
    process: subprocess.Popen[bytes]
    """Ending it ends the host."""
    pid: int
    """Of its first process, as it is known outside."""

    def words(self, *command: str) -> list[str]:
        """A command line that runs a command on this host.

        By a process in between; on the front, whose processes are those outside, by none.
        """
        spaces = SPACES if self.pid == self.process.pid else (*SPACES, "--pid")
        return ["nsenter", "--target", str(self.pid), *spaces, "--", *command]

    def run(self, *command: str) -> str:
        """Run a command on this host that must succeed; what it printed."""
        done = subprocess.run(self.words(*command), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command} on {self.name}: {done.stderr}"
        return done.stdout

    def end(self) -> None:
        """The host is gone, with everything that ran on it."""
        self.process.kill()
        self.process.wait(10)


@dataclass
class Network:
    """The front and the hosts around it."""

    folder: Path
    """The one below `/dev/shm` (if it is) that all hosts see: for programs' files and logs."""
    front: Host
    hosts: dict[str, Host] = field(default_factory=dict)
    """By their names; those that are gone, too."""
    lossy: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def add(self, name: str, loss: float = 0.0, shm_bytes: int = 1 << 30) -> Host:
        """A new host. `loss`: share of its packets that gets lost, each way."""
        number = 10 + len(self.hosts)
        address = f"{NET}.{number}"
        _named(self.folder, address, name)
        host = _started(name, address, self.folder, shm_bytes)
        self.hosts[name] = host
        if loss:
            self._join_lossy(host, loss)
        else:
            link = ("type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
            self.front.run("ip", "link", "add", "name", self.port(host), *link)
        self.front.run("ip", "link", "set", self.port(host), "master", "br0", "up")
        host.run("ip", "address", "add", f"{address}/{BITS}", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        return host

    def port(self, host: Host) -> str:
        """The front's end of a host's link."""
        return f"to-{host.address.rpartition('.')[2]}"

    def cut(self, name: str) -> None:
        """Pull the cable of a host."""
        self.front.run("ip", "link", "set", self.port(self.hosts[name]), "down")

    def mend(self, name: str) -> None:
        """Plug it in again."""
        self.front.run("ip", "link", "set", self.port(self.hosts[name]), "up")

    def _join_lossy(self, host: Host, loss: float) -> None:
        ends = [str(self.front.pid), self.port(host), str(host.pid), "eth0", str(loss)]
        self.lossy[host.name] = process = subprocess.Popen(
            [sys.executable, "-m", "tests.lossy_link", *ends],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).resolve().parents[1],
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", "the lossy link did not come up"

    def lost(self, name: str) -> tuple[int, int]:
        """How many packets a lossy link has been given since, and how many of them it lost."""
        process = self.lossy[name]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"?\n")
        process.stdin.flush()
        given, lost = process.stdout.readline().split()
        return int(given), int(lost)

    def close(self) -> None:
        """End everything."""
        for process in self.lossy.values():
            process.kill()
            process.wait(10)
        for host in (*self.hosts.values(), self.front):
            host.end()


@contextlib.contextmanager
def hosts(
    folder: Path, *names: str, loss: Mapping[str, float] | None = None, shm_bytes: int = 1 << 30
) -> Iterator[Network]:
    """A network of hosts of these names, around a front in whose network this thread is meanwhile.

    `folder`: all of them see it, wherever it is. `loss`: by name, the share of packets that gets
    lost each way.
    """
    with contextlib.ExitStack() as stack:
        _named(folder, "127.0.0.1", "localhost")
        _named(folder, FRONT, FRONT_NAME)
        network = Network(folder, _started(FRONT_NAME, FRONT, folder, 0))
        stack.callback(network.close)
        network.front.run("ip", "link", "add", "br0", "type", "bridge")
        network.front.run("ip", "address", "add", f"{FRONT}/{BITS}", "dev", "br0")
        network.front.run("ip", "link", "set", "br0", "up")
        for name in names:
            network.add(name, (loss or {}).get(name, 0.0), shm_bytes)
        stack.enter_context(_inside(network.front.pid))
        yield network


@functools.cache
def refusal() -> str:
    """Why this machine lets us make no hosts; empty: it does."""
    from shutil import which

    if sys.platform != "linux":
        return "hosts are made of Linux namespaces"
    if missing := [tool for tool in TOOLS if which(tool) is None]:
        return f"not installed: {', '.join(missing)} (packages iproute2, util-linux, hostname)"
    script = "mount -t tmpfs spillway /dev/shm && ip link add br0 type bridge"
    tried = subprocess.run(
        ["unshare", *SPACES, *PROCESSES, "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        told = tried.stderr.strip().splitlines()[-1:]
        return f"no right to make namespaces, which takes root: {' '.join(told)}"
    return ""


def _named(folder: Path, address: str, name: str) -> None:
    """Add a name to the file that every host has as `/etc/hosts`."""
    with (folder / "names").open("a") as names:
        names.write(f"{address} {name}\n")


def _started(name: str, address: str, folder: Path, shm_bytes: int) -> Host:
    """A host without links: its first process waits until this one has gone.

    `shm_bytes`: of a `/dev/shm` of its own; 0: it has that of this machine, and its processes.
    """
    there = shlex.quote(str(folder))
    steps = [f"hostname {name}", f"mount --bind {there}/names /etc/hosts", "ip link set lo up"]
    if shm_bytes:
        shm = f"mount -t tmpfs -o size={shm_bytes},mode=1777 spillway /dev/shm"
        again = f"mkdir -p {there} && mount --bind /mnt {there} && umount /mnt"
        steps += [f"mount --bind {there} /mnt", shm, again]
    script = " && ".join([*steps, "echo ready", "exec cat"])
    process = subprocess.Popen(
        ["unshare", *SPACES, *(PROCESSES if shm_bytes else ()), "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n", f"{name} did not come up"
    pids = [each.pid for each in psutil.Process(process.pid).children()] or [process.pid]
    return Host(name, address, process, pids[0])


@contextlib.contextmanager
def _inside(pid: int) -> Iterator[None]:
    """This thread, and what it starts meanwhile, in the network of a process."""
    with open("/proc/thread-self/ns/net") as before, open(f"/proc/{pid}/ns/net") as there:
        enter_network(there.fileno())
        try:
            yield
        finally:
            enter_network(before.fileno())


def enter_network(file: int) -> None:
    """Go over to a network, by a file of `/proc/*/ns/net`: this thread alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(file, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")
