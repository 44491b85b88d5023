"""What a round would cost beyond what was measured: formulas, and all tables.

Nothing is measured here. Times and bytes come from `benchmarks/results` (`scale.json`,
`secure-sum.json`, `sketch-*.json`), devices and what a machine is come from `Machine`:

    leaves    = N max(a + h, 8 B / link) / seconds         (the larger: the bottleneck)
    fan-in    = closing / max(a, 8 B / link)               (sums that a node above takes in time)
    levels    = least k with fan-in**k >= leaves
    memory    = table + senders * N / leaves               (of a leaf)

with `N` devices, `B` bytes and `a` seconds to take a message in, and `h` seconds of a handshake.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import readable

__all__ = ["Cost", "Machine", "Plan", "plan", "print_model"]

DEVICES = (10**5, 10**6, 10**7)
GROUPS = (10, 100)


@dataclass(frozen=True)
class Machine:
    """An aggregator, and how long a round may take.

    Attributes:
        link: Bits a second into it.
        seconds: In which all messages of devices arrive.
        closing: For each level of sums above the leaves.
    """

    link: float = 1e9
    seconds: float = 60.0
    closing: float = 5.0


@dataclass(frozen=True)
class Cost:
    """Of one message at a server, and of its table.

    Attributes:
        message_bytes: On the wire.
        add_s: To parse, check and add it.
        handshake_s: To accept its connection.
        table_bytes: Memory of a server that takes such messages.
        sender_bytes: Memory for each sender.
    """

    message_bytes: int
    add_s: float
    handshake_s: float
    table_bytes: float
    sender_bytes: float


@dataclass(frozen=True)
class Plan:
    """A tree for a round.

    Attributes:
        leaves: Aggregators that devices send to.
        bottleneck: What their number follows from.
        levels: Of aggregators above them; 0 if the only leaf is the root.
        fan_in: Sums that each of those takes at the most.
        closing_s: Until the root has the total, after the last device's message.
        leaf_bytes: Memory of a leaf.
    """

    leaves: int
    bottleneck: str
    levels: int
    fan_in: int
    closing_s: float
    leaf_bytes: float


def plan(devices: int, cost: Cost, machine: Machine) -> Plan:
    """The smallest tree that sums a round in time.

    >>> small = Cost(1250, add_s=1e-5, handshake_s=0.0, table_bytes=0.0, sender_bytes=60.0)
    >>> found = plan(11 * 10**6, small, Machine(link=1e9, seconds=60.0, closing=5.0))
    >>> found.leaves, found.bottleneck, found.levels, found.fan_in
    (2, 'network', 1, 2)
    """
    wire = 8 * cost.message_bytes / machine.link
    shares = {"network": wire, "adding": cost.add_s, "handshakes": cost.handshake_s}
    cpu = cost.add_s + cost.handshake_s
    bottleneck = "network" if wire >= cpu else max(("adding", "handshakes"), key=shares.__getitem__)
    leaves = math.ceil(devices * max(cpu, wire) / machine.seconds)
    term = max(cost.add_s, wire)  # aggregators keep their connections
    most = max(2, int(machine.closing / term))
    levels = 0
    while most**levels < leaves:
        levels += 1
    fan_in = 1
    while fan_in**levels < leaves:
        fan_in += 1
    memory = cost.table_bytes + cost.sender_bytes * devices / leaves
    return Plan(leaves, bottleneck, levels, fan_in, levels * fan_in * term, memory)


def print_model(results: Path, machine: Machine | None = None) -> None:
    """Print all tables."""
    print("\n\n".join(["# Scale: all tables", *tables(results, machine or Machine())]))


def tables(results: Path, machine: Machine) -> list[str]:
    """The tables of `results/scale.md`, in its order."""
    scale = _read(results / "scale.json")
    sketches = [_read(path) for path in sorted(results.glob("sketch-*.json"))]
    secure = _read(results / "secure-sum.json")
    return [
        server_table(scale["servers"]),
        client_table(sketches),
        model_table(scale, machine),
        secure_table(secure["cases"], machine),
    ]


def server_table(cases: Iterable[dict[str, Any]]) -> str:
    """What was measured of a server process."""
    lines = [
        [
            _table(case), f"{case['bits']}-bit {case['cells']}", f"{case['messages']:,}",
            f"{case['message_bytes']:,}", readable(case["add_s"]), f"{1 / case['add_s']:,.0f}",
            _gbits(8 * case["message_bytes"] / case["add_s"]), readable(case["total_s"]),
            _size(case["extra_bytes"]),
        ]
        for case in cases
    ]  # fmt: skip
    headers = ["table", "cells", "messages", "bytes each", "time each", "a second, one core"]
    return _markdown([*headers, "which is Gbit/s", "total", "memory"], lines)


def client_table(results: Iterable[dict[str, Any]]) -> str:
    """What was measured of encoding and decoding, with one thread or one GPU."""
    found = []
    for result in results:
        gpu = result["hardware"]["gpu"]
        for case in result["cases"]:
            if gpu or case["threads"] == 1:
                times = [
                    case["summary"][part]["blocked"]["median_s"] for part in ("encode", "query")
                ]
                size = 48 + 4 * case["rows"] * case["cols"]
                key = (bool(gpu), case["dim"], -case["cols"])
                line = [
                    gpu or "CPU, one core", f"{case['dim']:,}", _table(case), f"{size:,}",
                    f"{case['compression']:.0f}x", *map(readable, times),
                    f"{times[0] / case['dim'] * 1e12:,.0f} ps",
                ]  # fmt: skip
                found.append((key, line))
    headers = ["device", "parameters", "table", "message", "compression", "encode", "decode"]
    return _markdown([*headers, "encode, a parameter"], [line for _, line in sorted(found)])


def costs(scale: dict[str, Any]) -> dict[str, Cost]:
    """What a float32 message costs, by table; the last is ten times the largest measured one."""
    largest: dict[str, dict[str, Any]] = {}
    for case in scale["servers"]:
        if case["cells"] == "float32":
            known = largest.setdefault(_table(case), case)
            if case["messages"] > known["messages"]:
                largest[_table(case)] = case
    handshake, each = scale["handshake_s"] or 0.0, sender_bytes(scale["servers"])
    found = {}
    for name, case in largest.items():
        table = max(0.0, case["extra_bytes"] - each * case["messages"])
        found[name] = Cost(case["message_bytes"], case["add_s"], handshake, table, each)
    last = found[name]
    found["5x400,000 (extrapolated)"] = Cost(
        48 + 4 * 5 * 400_000, 10 * last.add_s, handshake, 10 * last.table_bytes, each
    )
    return found


def sender_bytes(cases: Iterable[dict[str, Any]]) -> float:
    """Memory for each sender: what the smallest table's largest round took, for its messages."""
    smallest = min(cases, key=lambda case: (case["message_bytes"], -case["messages"]))
    return float(smallest["extra_bytes"] / smallest["messages"])


def model_table(scale: dict[str, Any], machine: Machine) -> str:
    """Rounds of more devices than one process can take."""
    lines = []
    for name, cost in costs(scale).items():
        for devices in DEVICES:
            found = plan(devices, cost, machine)
            volume = devices * cost.message_bytes
            above = f"{found.levels} of {found.fan_in:,}" if found.levels else "none"
            lines.append(
                [
                    name, _power(devices), _size(volume), _gbits(8 * volume / machine.seconds),
                    f"{devices * cost.add_s:,.0f} s", f"{devices * cost.handshake_s:,.0f} s",
                    f"{found.leaves:,}", found.bottleneck if found.levels else "-",
                    _size(found.leaf_bytes), above,
                    readable(found.closing_s) if found.levels else "0",
                ]
            )  # fmt: skip
    headers = ["table", "devices", "bytes in", "Gbit/s", "adding", "handshakes", "leaves"]
    headers += ["because of", "a leaf's memory", "levels above", "which take"]
    return _markdown(headers, lines)


def secure_table(cases: Sequence[dict[str, Any]], machine: Machine) -> str:
    """Rounds of ten million devices in groups, each with a secure sum of its own."""
    devices, lines = DEVICES[-1], []
    for case in cases:
        members = case["members"]
        if members in GROUPS and (members == max(GROUPS) or not case["dropouts"]):
            up, down = sum(case["bytes_up"].values()), sum(case["bytes_down"].values())
            taken = sum(case["server_s"].values())
            groups = devices // members
            lines.append(
                [
                    _table(case), str(members), str(case["dropouts"]), _power(groups),
                    readable(sum(case["member_s"].values())), f"{up:,}", f"{down:,}",
                    f"{up / case['message_bytes']:.1f}x", f"{groups * taken:,.0f} s",
                    f"{math.ceil(groups * taken / machine.seconds):,}",
                    _gbits(8 * devices * up / machine.seconds), f"{math.sqrt(groups):,.0f}x",
                ]
            )  # fmt: skip
    headers = ["table", "group", "dropouts in it", "groups", "a device's time", "up", "down"]
    headers += ["up, to plain", "servers' time", "cores", "Gbit/s in", "noise, to one sum"]
    return _markdown(headers, lines)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _table(case: dict[str, Any]) -> str:
    rows, cols = case.get("shape") or (case["rows"], case["cols"])
    return f"{rows}x{cols:,}"


def _power(number: int) -> str:
    """A power of ten.

    >>> _power(1000)
    '10<sup>3</sup>'
    """
    return f"10<sup>{round(math.log10(number))}</sup>"


def _gbits(bits: float) -> str:
    return f"{bits / 1e9:,.{3 if bits < 1e9 else 1 if bits < 1e11 else 0}f}"


def _size(size: float) -> str:
    """Bytes with a decimal unit.

    >>> _size(664e5), _size(8e12)
    ('66 MB', '8.0 TB')
    """
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size >= unit:
            return f"{size / unit:.{1 if size < 10 * unit else 0}f} {name}"
    return f"{size / 1e3:.0f} kB"


def _markdown(headers: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [headers, ["---"] * len(headers), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
