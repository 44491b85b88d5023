"""A mean in one call is the round that it stands for; the example with it runs."""

from __future__ import annotations

import math
import re
import runpy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array, csr_matrix

from benchmarks.timing import extra_memory
from diffsketch import SketchKey, build_method
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods import PlainSketch, SketchGaussian, SketchSkellam, Uncompressed
from diffsketch.methods.gate import (
    ClippedVectors,
    check_release,
    private_mean,
    release,
    release_total,
)
from diffsketch.methods.plain import SaturatedCells
from diffsketch.privacy import (
    Account,
    Budget,
    BudgetExceeded,
    CohortNoise,
    NoiseKey,
    ProvenClaim,
    SimulatedClaim,
    Trust,
)
from diffsketch.privacy.mechanisms.integer import SkellamMechanism
from tests.helpers.refusals import refused
from tests.methods.cases import CASES, WORKERS, Case
from tests.methods.cases import VECTORS as CASE_VECTORS

DIM = 60
KEY, NOISE = SketchKey.from_integer(1), NoiseKey.from_integer(1)
VECTORS = torch.randn(50, DIM, generator=torch.Generator().manual_seed(1))


def test_the_mean_of_vectors_as_they_are() -> None:
    found = private_mean(VECTORS, Uncompressed(DIM), key=KEY)
    torch.testing.assert_close(found.mean, VECTORS.mean(dim=0))
    assert (found.count, found.message_bytes, found.total_bytes) == (50, 4 + 240, 8 + 240)
    assert found.bytes_up == 50 * 244
    assert found.claim.basis == "none"


def test_it_is_the_round_that_it_stands_for() -> None:
    method = SketchGaussian(DIM, 1, 20, clip=9.0, noise_multiplier=0.5, trust=Trust.CENTRAL)
    found = private_mean(VECTORS, method, key=KEY, round_index=4, simulation_seed=1)
    own = CohortNoise(NOISE, range(50), round_index=4)
    server = CohortNoise(NOISE, [1 << 62], round_index=4)
    total = method.publish(method.encode(VECTORS, KEY.seed(4), own).messages.sum(dim=0), server)
    assert torch.equal(found.mean, method.decode(total, KEY.seed(4), count=50))
    again = private_mean(VECTORS, method, key=KEY, round_index=5, simulation_seed=1)
    assert not torch.equal(found.mean, again.mean)


def test_fewer_holders_have_a_weaker_claim() -> None:
    method = SketchSkellam(DIM, 1, 20, clip=9.0, noise_multiplier=1.0, cohort=50)
    full, half = (
        private_mean(vectors, method, key=KEY).claim.epsilon(delta=1e-5, rounds=1)
        for vectors in (VECTORS, VECTORS[:25])
    )
    assert float(half) > float(full)
    with pytest.raises(ArgumentError, match=r"at most as many rows as the cohort .*, 50, got 51"):
        private_mean(torch.zeros(51, DIM), method, key=KEY)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_noise_is_never_drawn_twice_without_a_seed(case: Case) -> None:
    """The same arguments: other noise, unless there is a seed; methods without noise repeat."""
    method = case.method
    claim = method.claim_for(WORKERS, KEY.seed(0))
    if isinstance(claim, ProvenClaim) and not method.exact:
        with pytest.raises(ArgumentError, match=f"method='{method.name}' must not be sent"):
            private_mean(CASE_VECTORS, method, key=KEY)
    else:
        one, two = (private_mean(CASE_VECTORS, method, key=KEY) for _ in range(2))
        assert torch.equal(one.mean, two.mean) == (case.variance == 0)
        assert not isinstance(one.claim, SimulatedClaim)
    seeded = [private_mean(CASE_VECTORS, method, key=KEY, simulation_seed=7) for _ in range(2)]
    assert torch.equal(seeded[0].mean, seeded[1].mean)
    assert isinstance(seeded[0].claim, SimulatedClaim) == isinstance(claim, ProvenClaim)


def test_a_key_is_made_up_if_there_is_none() -> None:
    method = PlainSketch(DIM, 1, 20)
    one, two = (private_mean(VECTORS, method).mean for _ in range(2))
    assert not torch.equal(one, two)  # other hashes


def test_cells_of_few_bits_want_a_limit_where_something_is_claimed() -> None:
    """The vectors' own sizes would tell about them, and the default would leave nothing of them."""
    settings: dict[str, object] = {"rows": 1, "cols": 20, "bits": 4, "per_round": 1.0}
    method = build_method("diffsketch", dim=DIM, cohort=50, settings=settings)
    with pytest.raises(ArgumentError, match="cell_limit must be given for cells of few bits"):
        private_mean(VECTORS, method, key=KEY)
    given = build_method("diffsketch", dim=DIM, cohort=50, settings=settings | {"cell_limit": 99})
    found = private_mean(VECTORS, given, key=KEY)
    assert found.saturated is not None
    assert found.saturated < 0.1
    assert float(found.mean.norm()) > 1


def test_a_limit_that_is_given_holds() -> None:
    method = PlainSketch(DIM, 1, 20, bits=4)
    fitting = private_mean(VECTORS, method, key=KEY).saturated
    assert fitting is not None
    assert fitting < 0.001
    assert private_mean(VECTORS, PlainSketch(DIM, 1, 20), key=KEY).saturated is None
    with pytest.warns(SaturatedCells, match="most cells of 50 of 50 messages were beyond"):
        small = private_mean(VECTORS, PlainSketch(DIM, 1, 20, bits=4, cell_limit=0.01), key=KEY)
    assert small.saturated is not None
    assert small.saturated > 0.9
    assert float(small.mean.abs().max()) <= 0.01


@pytest.mark.parametrize("size", [1e-26, 1.0, 1e24])
def test_one_vector_that_is_far_larger_is_not_cut(size: float) -> None:
    """The mean of 40 rounds along the truth, within 6 standard errors of `sqrt(2 / 400 / 40)`.

    It is off by more with probability below 1e-8; the limit of the usual vector leaves 0.2.
    """
    vectors = torch.randn(8, 400, generator=torch.Generator().manual_seed(3)) * size
    vectors[0] *= 100
    truth, method = vectors.mean(dim=0).double() / size, PlainSketch(400, 1, 400, bits=4)
    found = [private_mean(vectors, method, key=KEY, round_index=i).mean for i in range(40)]
    mean = torch.stack(found).double().mean(dim=0) / size
    assert float(mean @ truth / (truth @ truth)) == pytest.approx(1, abs=6 * (2 / 400 / 40) ** 0.5)


CLIPPED: dict[str, tuple[dict[str, object], str]] = {
    "gaussian": ({"clip": 1.0, "noise_multiplier": 1.0}, "clip=1"),
    "skellam": ({"clip": 1.0, "noise_multiplier": 1.0, "trust": "local"}, "clip=1"),
    "sketch-gaussian": ({"rows": 3, "cols": 20, "clip": 2.0, "noise_multiplier": 1.0}, "clip=2"),
    "laplace": ({"per_round": 1.0, "clip": 0.5}, "clip=0.5"),
    "cpsgd": ({"levels": 16, "trials": 4, "clip": 2.0}, "clip=2, limit=1"),
}  # fmt: skip


@pytest.mark.parametrize("name", CLIPPED)
def test_vectors_that_are_far_too_long_are_told_of(name: str) -> None:
    """Norms of 1 are within what each method is made for; a hundred times as long are not."""
    settings, limits = CLIPPED[name]
    method = build_method(name, dim=DIM, cohort=50, settings=settings)
    fitting = VECTORS / VECTORS.norm(dim=1, keepdim=True)
    private_mean(fitting, method, key=KEY, simulation_seed=1)  # without a warning
    some = torch.cat([fitting[:40], 100 * fitting[40:]])  # a few, and so all together
    for long, told in ((100 * fitting, "50 of 50"), (some, "10 of 50")):
        match = rf"{told} vectors \(\d+%\) are longer than the method allows \({limits}\)"
        with pytest.warns(ClippedVectors, match=match) as found:
            private_mean(long, method, key=KEY, simulation_seed=1)
        assert found[0].filename == __file__  # where the user called


def test_a_clip_that_the_planner_chooses_is_not_told_of() -> None:
    """It may clip half of the tables, by a little: the best balance of clipping and noise."""
    for key in map(SketchKey.from_integer, range(20)):
        method = SketchGaussian(DIM, 1, 20, clip=1.0, noise_multiplier=1.0, trust=Trust.CENTRAL)
        private_mean(VECTORS / VECTORS.norm(dim=1, keepdim=True), method, key=key)


class Frame:
    """As a data frame: not an array, but says how to become one."""

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return VECTORS.double().numpy()


READ_ONLY = np.broadcast_to(VECTORS.numpy(), VECTORS.shape)


@pytest.mark.parametrize(
    "same",
    [VECTORS.tolist(), list(VECTORS), list(VECTORS.numpy()), Frame(), VECTORS.double(), READ_ONLY,
     VECTORS.flip(1).numpy()[:, ::-1], VECTORS.numpy().astype(">f8"), VECTORS.to_sparse(),
     csr_matrix(VECTORS.numpy()), coo_array(VECTORS.numpy())],
)  # fmt: skip
def test_whatever_holds_numbers_is_taken(same: Any) -> None:
    found = private_mean(same, Uncompressed(DIM), key=KEY).mean
    torch.testing.assert_close(found, VECTORS.mean(dim=0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.int64])
def test_other_types_become_float32(dtype: torch.dtype) -> None:
    numbers = torch.arange(4 * DIM).reshape(4, DIM) % 100
    found = private_mean(numbers.to(dtype), Uncompressed(DIM), key=KEY).mean
    torch.testing.assert_close(found, numbers.float().mean(dim=0))


def test_what_are_no_numbers_is_refused() -> None:
    masked = np.ma.masked_less(VECTORS.numpy(), 0)
    mean = partial(private_mean, method=Uncompressed(DIM), key=KEY)
    refused(ArgumentError, "torch.complex64", mean, VECTORS + 1j)
    refused(ArgumentError, "dtype complex64", mean, VECTORS.numpy() + 1j)
    refused(ArgumentError, "complex64", mean, csr_matrix(VECTORS.numpy() + 1j))
    refused(ArgumentError, "dtype object", mean, VECTORS.numpy().astype(object))
    refused(ArgumentError, "list of dtype <U1", mean, ["a", "b"])
    refused(ArgumentError, "list: .*inhomogeneous", mean, [[1.0, 2.0], [3.0]])
    refused(ArgumentError, "NoneType of dtype object", mean, None)
    refused(ArgumentError, "must not be masked.* got a MaskedArray", mean, masked)
    refused(ArgumentError, "must not be masked", mean, list(masked))
    refused(ArgumentError, "in rows 0, 1$", mean, np.full((2, DIM), 1e300))


def test_truth_values_are_numbers() -> None:
    for same in (VECTORS > 0, VECTORS.numpy() > 0, csr_matrix(VECTORS.numpy() > 0)):
        found = private_mean(same, Uncompressed(DIM), key=KEY).mean
        torch.testing.assert_close(found, (VECTORS > 0).float().mean(dim=0))


@pytest.mark.parametrize("name", ["uncompressed", "skellam", "bits"])
def test_pieces_are_one_round(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noise, sum, limit of cells and charge, in however many pieces it is encoded."""
    method = {
        "uncompressed": Uncompressed(DIM),
        "skellam": SketchSkellam(DIM, 1, 20, clip=9.0, noise_multiplier=1.0, cohort=50),
        "bits": PlainSketch(DIM, 1, 20, bits=4),
    }[name]
    means = []
    for size in (1 << 22, 7 * DIM):
        monkeypatch.setattr("diffsketch.methods.gate._PIECE", size)
        account = Account()
        found = private_mean(VECTORS, method, key=KEY, simulation_seed=2, account=account)
        assert account.rounds == 1
        means.append(found.mean)
    torch.testing.assert_close(*means, rtol=0, atol=1e-6 if name == "uncompressed" else 0)


@pytest.mark.slow
def test_a_sparse_matrix_is_never_made_dense() -> None:
    """600 people and 100,000 keys, 240 MB if they were dense: less than 150 MB are taken."""
    people, keys = 600, 100_000
    rng = np.random.default_rng(1)
    matrix = csr_matrix(
        (np.ones(20 * people), rng.integers(keys, size=20 * people), np.arange(people + 1) * 20),
        shape=(people, keys),
    )
    method = SketchSkellam(keys, 1, 1000, clip=9.0, noise_multiplier=1.0, cohort=people)
    private_mean(matrix[:10], method, key=KEY)  # compiles
    taken = extra_memory(lambda: private_mean(matrix, method, key=KEY), device=torch.device("cpu"))
    dense = extra_memory(matrix.astype(np.float32).toarray, device=torch.device("cpu"))
    assert taken is None or taken < 150 * 2**20
    assert dense is None or dense > 200 * 2**20  # the measure sees what it is to see


def test_bad_input() -> None:
    method = Uncompressed(DIM)
    broken = VECTORS.clone()
    broken[7, 3], broken[31, 0] = math.nan, math.inf
    refused(ArgumentError, r"in rows 7, 31$", private_mean, broken, method, key=KEY)
    with pytest.MonkeyPatch.context() as patch:  # rows are counted over pieces
        patch.setattr("diffsketch.methods.gate._PIECE", 5 * DIM)
        refused(ArgumentError, r"in rows 7$", private_mean, broken, method, key=KEY)
    refused(ArgumentError, r"holders, dim", private_mean, VECTORS[0], method, key=KEY)
    refused(ArgumentError, "one row or more", private_mean, VECTORS[:0], method, key=KEY)
    refused(MismatchError, "dim=60", private_mean, VECTORS[:, :-1], method, key=KEY)
    refused(ArgumentError, "method must be a Method", private_mean, VECTORS, "none", key=KEY)
    refused(ArgumentError, "key must be a SketchKey", private_mean, VECTORS, method, key=NOISE)
    for bad in ("7", -1):
        refused(ArgumentError, "seed must be", private_mean, VECTORS, method, simulation_seed=bad)


@pytest.mark.slow
def test_the_example_finds_the_frequent_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """With fixed seeds. Of the ten shares only one is above 14 points."""
    path = Path(__file__).parents[2] / "examples" / "private_histogram.py"
    example = runpy.run_path(str(path), run_name="example")
    example["main"]()
    printed = capsys.readouterr().out
    errors = dict(re.findall(r"^([\w-]+): [^\n]*\n    errors of ([\d.]+) points", printed, re.M))
    assert list(errors) == list(example["METHODS"])
    found = {name: float(value) for name, value in errors.items()}
    assert found["none"] == 0
    assert found["sketch"] < 0.2
    assert max(found["sketch-gaussian"], found["sketch-skellam"]) < 0.6
    assert printed.count("(proven; client unit, replace,") == 2
    assert printed.count("(no claim; client unit, replace,") == 2
    vectors = example["histograms"](seed=3)
    assert float((vectors.sum(dim=1) - 1).abs().max()) < 1e-5
    assert float(vectors.min()) >= 0
    assert float(vectors.norm(dim=1).max()) <= 1 + 1e-6  # what the clip is made for


# The gate.

GAUSSIAN = build_method(
    "gaussian", dim=DIM, cohort=4, settings={"clip": 1.0, "noise_multiplier": 2.0}
)
CLAIM = GAUSSIAN.claim_for(1, KEY.seed(0))
NOTHING = Uncompressed(DIM)
ODD = {
    "nan": math.nan,
    "infinite": math.inf,
    "too large for float32": 1e300,
    "zero": 0.0,
    "tiny": 1e-300,
}


def test_nothing_is_encoded_before_it_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    encode = type(GAUSSIAN).encode

    def watched(self: Any, *arguments: Any) -> Any:
        order.append("encode")
        return encode(self, *arguments)

    monkeypatch.setattr(type(GAUSSIAN), "encode", watched)
    vectors = VECTORS[:1]
    release(vectors, GAUSSIAN, KEY.seed(0), CLAIM, charge=lambda: order.append("charge"))
    assert order == ["charge", "encode"]
    spent = Account(Budget(1e-3, 1e-9))
    with pytest.raises(BudgetExceeded, match="budget"):
        release(vectors, GAUSSIAN, KEY.seed(0), CLAIM, charge=partial(spent.charge, CLAIM))
    assert order == ["charge", "encode"]


def test_the_noise_of_a_total_is_drawn_after_it_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    method = SketchSkellam(DIM, 1, 20, clip=9.0, noise_multiplier=1.0, cohort=3)
    mechanism, claim = method.mechanism, method.claim_for(3, KEY.seed(0))
    assert isinstance(mechanism, SkellamMechanism)
    draw, charge = type(mechanism).draw_sum, Account.charge

    def watched(self: Any, *arguments: Any, **more: Any) -> Any:
        order.append("draw")
        return draw(self, *arguments, **more)

    def charged(self: Account, *arguments: Any, **more: Any) -> Any:
        order.append("charge")
        return charge(self, *arguments, **more)

    monkeypatch.setattr(type(mechanism), "draw_sum", watched)
    monkeypatch.setattr(Account, "charge", charged)
    total = torch.zeros(DIM, dtype=torch.int64)
    noisy = [release_total(total, mechanism, claim, count=3, account=Account()) for _ in range(2)]
    assert order == ["charge", "draw"] * 2
    assert not torch.equal(*noisy)
    with pytest.raises(BudgetExceeded, match="budget"):
        release_total(total, mechanism, claim, count=3, account=Account(Budget(1e-3, 1e-9)))
    assert order == ["charge", "draw"] * 2 + ["charge"]


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_whatever_a_vector_is_its_message_looks_alike(value: float) -> None:
    """Under a proof, one message of the same shape and type for each, and no error."""
    vectors = torch.full((3, DIM), value, dtype=torch.float64)
    vectors[1] = 0.01
    released = release(vectors, GAUSSIAN, KEY.seed(0), CLAIM, charge=None)
    assert released.encoded is not None
    assert released.encoded.messages.shape == (3, DIM)
    assert released.encoded.messages.dtype == torch.int64
    good = math.isfinite(value) and abs(value) < 1e38
    assert released.kept.tolist() == [good, True, good]
    without = release(vectors, NOTHING, KEY.seed(0), NOTHING.claim_for(3, KEY.seed(0)), charge=None)
    assert without.encoded is not None
    assert len(without.encoded.messages) == (3 if good else 1)


def test_zeros_in_place_of_a_vector_have_their_noise() -> None:
    """20,000 cells of noise: the variance is within 6 standard errors (2e-9) of what is stated."""
    mechanism: Any = GAUSSIAN
    variance = float(mechanism.mechanism.std / mechanism.mechanism.quantizer.granularity) ** 2
    vectors = torch.full((350, DIM), math.nan)
    released = release(vectors, GAUSSIAN, KEY.seed(0), CLAIM, charge=None)
    assert released.encoded is not None
    cells = released.encoded.messages.double().flatten()
    error = 6 * variance * math.sqrt(2 / len(cells))
    assert abs(float(cells.var()) - variance) < error
    assert abs(0.64 * float(cells.var()) - variance) > error  # noise a fifth too small is seen


def test_what_a_gate_refuses() -> None:
    arguments = GAUSSIAN, KEY.seed(0), CLAIM
    refused(MismatchError, "with dim=60", release, torch.zeros(1, 3), *arguments, charge=None)
    simulated = SimulatedClaim.of(CLAIM)
    charged: list[int] = []
    with pytest.raises(ArgumentError, match="must be about exact noise"):
        release(VECTORS[:1], GAUSSIAN, KEY.seed(0), simulated, charge=lambda: charged.append(1))
    assert not charged  # what may not be sent at all costs nothing
    with pytest.raises(ArgumentError, match="budget must not be given where nothing is proven"):
        check_release(NOTHING, NOTHING.claim_for(1, KEY.seed(0)), budget=Budget(1.0, 1e-5))


def test_an_account_of_means() -> None:
    account = Account(Budget(3.0, 1e-5))
    method = SketchGaussian(DIM, 1, 20, clip=9.0, noise_multiplier=3.0, trust=Trust.CENTRAL)
    private_mean(VECTORS, method, account=account)
    bad = VECTORS.clone()
    bad[7, 3] = math.nan
    refused(ArgumentError, "in rows 7", private_mean, bad, method, account=account)
    assert account.rounds == 1  # a mistake of whoever holds the vectors costs nothing
    claim = method.claim_for(50, KEY.seed(0))
    assert isinstance(claim, ProvenClaim)
    for _ in range(account.rounds_left(claim)):
        private_mean(VECTORS, method, account=account)
    refused(BudgetExceeded, "budget", private_mean, VECTORS, method, account=account)
    seeded = Account()
    private_mean(VECTORS, method, account=seeded, simulation_seed=3)
    assert seeded.epsilon(1e-5).simulated
