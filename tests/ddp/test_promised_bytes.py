"""What `compression` promises, at any number of ranks; a device counts it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diffsketch.ddp.hook import compressed
from diffsketch.ddp.transport import GroupTransport

DIM = 1_049_600
WORLDS = (2, 4, 8, 16)
METHODS: dict[str, dict[str, Any]] = {
    "sketch": {}, "sketch-gaussian": {"clip": 1.0, "noise_multiplier": 4.0},
    "sketch-skellam": {"clip": 1.0, "noise_multiplier": 4.0},
}  # fmt: skip


def transport_of(world: int) -> GroupTransport:
    """The arithmetic of a group of that many ranks, without the ranks."""
    transport = object.__new__(GroupTransport)
    transport.rank, transport.world = 0, world
    return transport


def share(name: str, compression: float, world: int, *, dim: int = DIM, **settings: Any) -> float:
    transport = transport_of(world)
    settings = METHODS[name] | settings
    return transport.share(compressed(name, settings, compression, dim=dim, to=transport))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", METHODS)
def test_a_round_takes_what_was_promised(name: str, world: int) -> None:
    for compression in (32, 50, 160):
        assert 0.99 < share(name, compression, world) * compression <= 1


@pytest.mark.parametrize("dim", [2_000, 60_000, DIM])
def test_fewer_bits_never_cost_more(dim: int) -> None:
    """At few numbers, words that are not full and frames count most."""
    for world in WORLDS:
        for compression in (16, 50, 160):
            two, four = (share("sketch", compression, world, dim=dim, bits=bits) for bits in (2, 4))
            assert two <= four


def test_where_frames_outweigh_the_promise_half_of_it_is_for_cells() -> None:
    transport = transport_of(8)
    method = compressed("sketch", {}, 50, dim=10_000, to=transport)
    assert transport.share(method) > 1 / 50
    assert 0.9 / 100 < transport.share(method, framed=False) <= 1 / 100


@pytest.mark.slow  # processes are started
def test_a_device_counts_what_the_state_says(tmp_path: Path) -> None:
    """With 4 ranks, in a network namespace; frames alone are 2.6%, so that 1% would miss them."""
    unshare, no_probes = shutil.which("unshare"), "echo 0 > /proc/sys/net/ipv4/tcp_early_retrans"
    if (
        unshare is None
        or subprocess.run(  # noqa: S603
            [unshare, "-n", "sh", "-c", no_probes], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("only where network namespaces can be made")
    file = tmp_path / "bytes.json"
    options = ["--ranks", "4", "--ways", "hook", "--json", str(file)]
    subprocess.run(  # noqa: S603
        [unshare, "-n", sys.executable, "-m", "benchmarks.wire_bytes", *options],
        check=True, timeout=280, capture_output=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "DIFFSKETCH_WIRE_BYTES": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    (run,) = json.loads(file.read_text())["runs"]
    assert abs(run["sent"] / run["said"] - 1) < 0.01
    assert run["sent"] < 1.03 / 50 * (8 * DIM * 3 / 4)
