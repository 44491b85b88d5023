"""The benchmarks of accounts, calls, noise and the wire format run, and cover what they say.

No speed is asserted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import accounts, calls, noise, wire
from diffsketch.privacy.noise import Noise
from tests.helpers.refusals import refused
from tests.helpers.results import results_of


@pytest.mark.slow
def test_charges_of_accounts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = results_of(accounts.main, f"--quick --folder {tmp_path}", tmp_path)
    cases = {(one["kinds"], one["rounds"], one["budget"]) for one in found["charges"]}
    assert len(cases) == 8
    sizes = {one["kinds"]: one["bytes"] for one in found["charges"]}
    assert sizes[2] < 1000 < sizes[50] < 12_000  # whatever the number of rounds
    assert [one["clients"] for one in found["accounts"]] == [100, 10_000]
    assert all(one["seconds"] > 0 for one in (*found["charges"], *found["accounts"]))
    printed = capsys.readouterr().out
    assert "A charge of an account" in printed
    assert "a charge: " in printed


@pytest.mark.usefixtures("restore_threads")
def test_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = results_of(calls.main, "--quick --threads 1", tmp_path)
    assert [case["family"] for case in found["cases"]] == ["blocked", "pairwise"]
    for case in found["cases"]:
        assert len(case["seconds"]) == 8
        assert 0 < min(case["seconds"].values()) < max(case["seconds"].values()) < 60
    assert "over query" in capsys.readouterr().out


def test_every_sampler_of_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = results_of(noise.main, "--cells 200 --repeat 2 --secure-repeat 1", tmp_path)
    assert found["cells"] == 200
    inner = {"part", "integers"}  # which draw nothing by themselves, or for all samplers
    every = {name for name in dir(Noise) if name[0] != "_"} - inner
    exact = {"discrete_gaussian", "discrete_laplace"}
    samplers = {"fast": every, "secure": every - {"normal", "laplace"}, "opendp": exact}
    assert {(one["cells"], one["source"], one["sampler"]) for one in found["results"]} == {
        (cells, source, sampler)
        for cells in (200, 154) for source, names in samplers.items() for sampler in names
    }  # fmt: skip
    for result in found["results"]:
        assert 0 < result["min_s"] <= result["median_s"]
        assert result["samples"] == (2 if result["source"] == "fast" else 1)
    printed = capsys.readouterr().out
    for text in ("Noise for 200 cells", "Noise for 154 cells", "slowest fast", "slowest secure"):
        assert text in printed


def test_noise_may_be_quick() -> None:
    assert noise.parse([]).cells == 10**6
    assert noise.parse(["--quick"]).cells == 10**5
    assert noise.parse(["--quick", "--cells", "10"]).cells == 10


def test_packing_and_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = results_of(wire.main, "--cells 1e3 --repeat 1", tmp_path)
    assert [case["bits"] for case in found["packing"]] == list(wire.BITS)
    for case in found["packing"] + found["messages"]:
        assert len(case["seconds"]) == 4
        assert min(case["seconds"].values()) > 0
    assert "Packing 1,000 cells" in capsys.readouterr().out


def test_a_wrong_peer_of_packing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "by_packbits", lambda cells, bits: bytes(cells.size * bits // 8))
    refused(RuntimeError, "must give the same bytes", wire.run_packing, 8, 5, 1)
