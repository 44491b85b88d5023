"""Networks to measure on: a loopback of one's own, and two machines at the ends of a slow cable.

Linux lets root make network namespaces: networks that nobody else is in, so that their counters
count only what is measured. Where that is not possible, there is the machine's own loopback.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Link", "cable", "counted_bytes", "loopback"]


@dataclass(frozen=True)
class Link:
    """Where processes run.

    Attributes:
        name: What the tables call it.
        prefixes: What a rank's command starts with; rank `r` takes the `r`-th, or the last.
        interfaces: Of the ranks, in the same way.
    """

    name: str
    prefixes: tuple[tuple[str, ...], ...] = ((),)
    interfaces: tuple[str, ...] = ("lo",)

    def prefix(self, rank: int) -> tuple[str, ...]:
        """What the command of a rank starts with."""
        return self.prefixes[min(rank, len(self.prefixes) - 1)]

    def interface(self, rank: int) -> str:
        """What a rank's traffic goes through."""
        return self.interfaces[min(rank, len(self.interfaces) - 1)]


def counted_bytes(interface: str) -> tuple[int, int]:
    """Received and sent so far, headers included; on a loopback both are the same bytes."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            fields = numbers.split()
            return int(fields[0]), int(fields[8])
    raise LookupError(f"there is no interface {interface}")


@contextmanager
def loopback() -> Iterator[Link]:
    """A loopback that nobody else uses, or else the machine's."""
    name = f"dsloop{os.getpid()}"
    if not _try(["ip", "netns", "add", name]):
        yield Link("loopback (shared)")
        return
    try:
        _try(["ip", "-n", name, "link", "set", "lo", "up"])
        yield Link("loopback", (("ip", "netns", "exec", name),))
    finally:
        _try(["ip", "netns", "del", name])


@contextmanager
def cable(megabits: int) -> Iterator[Link | None]:
    """Two namespaces at the ends of a cable of so many Mbit/s each way; None if that fails."""
    number = os.getpid()
    ends = [(f"dsend{side}{number}", f"ds{side}v{number}", f"10.77.7.{side}/24") for side in (1, 2)]
    spaces = [space for space, _, _ in ends]
    commands = [["ip", "netns", "add", space] for space in spaces]
    commands.append(
        ["ip", "link", "add", ends[0][1], "netns", spaces[0], "type", "veth",
         "peer", "name", ends[1][1], "netns", spaces[1]]
    )  # fmt: skip
    for space, device, address in ends:
        commands += [
            ["ip", "-n", space, "addr", "add", address, "dev", device],
            ["ip", "-n", space, "link", "set", device, "up"],
            ["ip", "-n", space, "link", "set", "lo", "up"],
            # Segments that are larger than the bucket of the limiter would be dropped for ever.
            ["ip", "-n", space, "link", "set", device, "gso_max_size", "65536"],
            ["tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf",
             "rate", f"{megabits}mbit", "burst", "256kb", "latency", "50ms"],
        ]  # fmt: skip
    try:
        if all(_try(command) for command in commands):
            prefixes = tuple(("ip", "netns", "exec", space) for space in spaces)
            devices = tuple(device for _, device, _ in ends)
            yield Link(f"{megabits} Mbit/s", prefixes, devices)
        else:
            yield None
    finally:
        for space in spaces:
            _try(["ip", "netns", "del", space])


def _try(command: Sequence[str]) -> bool:
    program = shutil.which(command[0])
    if program is None:
        return False
    done = subprocess.run([program, *command[1:]], capture_output=True, check=False)  # noqa: S603
    return done.returncode == 0
