"""The hook in real DDP, over gloo: buckets in any shape, accumulation, errors, checkpoints."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import torch

from diffsketch.methods import PlainSketch
from diffsketch.sketch import SketchKey
from tests.ddp.ddp_checks import (
    VARIANTS,
    checks,
    checks_without_bfloat16,
    make_model,
    state_of,
    weights_of,
)
from tests.ddp.processes import Results, bfloat16_flaw, run_checks

pytestmark = pytest.mark.slow  # processes are started


@pytest.fixture(scope="module")
def flaw() -> str:
    return bfloat16_flaw()


@pytest.fixture(scope="module")
def results(flaw: str) -> Results:
    return run_checks(checks_without_bfloat16 if flaw else checks)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_hook_is_one_mean_of_the_flat_gradient(name: str, results: Results, flaw: str) -> None:
    if flaw and name == "bfloat16":
        pytest.skip(flaw)
    zero, one = results[f"variant {name}"]
    rtol, atol = (0.0, 0.02) if name == "bfloat16" else (1e-5, 1e-6)
    torch.testing.assert_close(zero["weights"], zero["by hand"], rtol=rtol, atol=atol)
    assert torch.equal(zero["weights"], one["weights"])
    assert zero["buckets"] == {"one bucket": 1, "guard": 0, "guard no_sync": 0}.get(
        name, zero["buckets"]
    )
    assert (zero["buckets"] > 1) == (name not in ("one bucket", "guard", "guard no_sync"))
    if name != "bfloat16":
        moved = zero["weights"] - weights_of(make_model())
        assert float(moved.norm()) > 0.01  # or nothing was compared


def test_only_an_illegal_instruction_excuses_bfloat16() -> None:
    assert bfloat16_flaw("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert not bfloat16_flaw("")
    for script in ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "1 / 0"):
        with pytest.raises(subprocess.CalledProcessError):
            bfloat16_flaw(script)


def test_without_compression_it_is_plain_ddp(results: Results) -> None:
    expected = results["plain"][0]
    found = results["variant none"][0]["weights"]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(results["variant buckets"][0]["weights"], expected, rtol=1e-2)


def test_a_checkpoint_continues_to_the_same_bits(results: Results) -> None:
    for found in results["resumed"]:
        with_state, without = found["found"]
        assert torch.equal(with_state, found["whole"])
        assert not torch.allclose(without, found["whole"])
        assert found["epsilon"][0] == found["epsilon"][1]
        assert "over 6 rounds (proven; client unit" in found["epsilon"][0]
        assert "a model with the same parameters" in found["layout"]


def test_all_ranks_raise_from_backward(results: Results) -> None:
    zero, one = results["failing"]
    void = "MismatchError: round 0 is void: rank 1 failed, see the error there"
    assert zero["model"] == void
    assert one["model"].startswith("MismatchError: a parameter of the shape")
    for found in (zero, one):
        assert "rank 0 is in round 0, rank 1 is in round 3" in found["round"]
        assert found["frozen"].startswith("MismatchError: DDP has no gradients of side.weight, s")
        assert found["thawed"].startswith("MismatchError: a parameter of the shape (20")
        assert found["budget"].startswith("BudgetExceeded: 1 more round would bring epsilon to")
        assert found["seed"].startswith("MismatchError: all ranks must have the same key")
        assert found["load"][2:] == [True, True]
    assert zero["settings"] == "MismatchError: rank 1 failed to start, see the error there"
    assert one["settings"].startswith("ArgumentError: compression must be in [1, ")
    failed = "MismatchError: rank 1 failed to load its state, see the error there"
    assert zero["load"][:2] == [failed, failed]
    assert "rank is 1 here and was 0" in one["load"][0]
    assert "a model with the same parameters" in one["load"][1]


def test_an_error_in_a_guard_is_a_step_of_zeros_or_raised_by_all(results: Results) -> None:
    zero, one = results["guarded"]
    for found in (zero, one):
        assert found["raised"]["errors"] == ["", "", ""]
        assert found["raised"]["rounds"] == 3
        assert torch.equal(found["raised"]["weights"], zero["zeros"]["weights"])
    (logged,) = one["raised"]["log"]
    assert logged.endswith("since its code raised: planted")
    assert zero["raised"]["log"] == one["zeros"]["log"] == one["unproven"]["log"] == []
    void = "MismatchError: round 1 is void: rank 1 failed, see the error there"
    assert zero["unproven"]["errors"] == ["", void, ""]
    assert one["unproven"]["errors"] == ["", "OSError: planted", ""]
    assert torch.equal(zero["unproven"]["weights"], one["unproven"]["weights"])


def test_weights_are_compared_and_buffers_stay_where_they_are(results: Results) -> None:
    for rank, found in enumerate(results["different_weights"]):
        assert f"all ranks must have the same weights, but rank {1 - rank} dif" in found["apart"]
        assert found["kept"] == [float(rank), 0.0]  # and plain DDP sends them
    zero, one = (found["wrong"] for found in results["different_weights"])
    assert zero == "MismatchError: rank 1 failed to compare its weights, see the error there"
    assert one.startswith("ArgumentError: module must be one that is not wrapped yet, got str")


def test_a_scaler_skips_a_step_with_nan_on_all_ranks(results: Results) -> None:
    for found in results["not_finite"]:
        assert found["scales"] == [64.0, 32.0, 32.0]
        assert found["nan"] == [False, True, False]
        first, second, third = found["weights"]
        assert torch.equal(first, second)
        assert not torch.equal(second, third)
        assert third.isfinite().all()
        torch.testing.assert_close(first, found["unscaled"])
    assert torch.equal(*(found["weights"][2] for found in results["not_finite"]))


def test_tensors_without_ddp(results: Results) -> None:
    zero, one = results["interrupted"]
    assert zero["wrong"].endswith("rank 1 failed, see the error there")
    assert one["wrong"].startswith("ArgumentError: tensors must be dense and of a floating type")
    assert zero["short"].endswith("rank 1 failed, see the error there")
    assert one["short"].startswith("MismatchError: vector must have the shape (12,), got (6,)")
    for first, second in zip(zero["good"], one["good"], strict=True):
        assert torch.equal(first, second)
    assert zero["good"][1].dtype == torch.bfloat16
    for found in (zero, one):
        assert torch.equal(found["parameter"], torch.full((12,), 0.5))
        assert torch.equal(found["once"], torch.full((12,), 0.5))
        assert "all ranks must have the same method" in found["apart"]


def test_a_state_takes_the_group_of_its_model(results: Results) -> None:
    for found in results["subgroup"]:
        assert found["world"] == 1
        assert list(found["cols"]) == [2, 50]


def test_the_example_learns(results: Results) -> None:
    """With a fixed seed; guessing has 10%."""
    zero, one = results["example"]
    assert zero == one > 0.6


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"seed": None}, "seed or key must be given"),
        ({"key": SketchKey.from_integer(1)}, "seed or key must be given"),
        ({"method": "none", "error_feedback": False}, "compression is for methods with tables"),
        ({"cols": 5}, "compression or cols must be given, and not both"),
        ({"compression": 0.5}, r"compression must be in \[1, "),
        ({"method": PlainSketch(5, 1, 2)}, "settings must not be given with a method"),
    ],
)
def test_settings_that_do_not_go_together(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        state_of(make_model(), **options)
