"""What each rank of a group does, and returns; `test_group.py` says what it must be."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from diffsketch.ddp.group import GroupMean
from diffsketch.methods import (
    DiffSketch,
    GaussianMean,
    Method,
    PlainSketch,
    RawLaplace,
    SketchGaussian,
    SketchSkellam,
    Uncompressed,
)
from diffsketch.privacy import Budget
from diffsketch.privacy.claim import Trust
from diffsketch.sketch import SketchKey
from paper.repaired import ProvenDiffSketch
from tests.ddp.processes import WORLD, Check, Checks, error_of, logged
from tests.helpers.contract import CASES, Case, applied, first_weights, gradient
from tests.helpers.silent import silence

DIM = 40
KEY = SketchKey.from_integer(3)
SKETCH = PlainSketch(DIM, 1, 8)
LOCAL = SketchGaussian(DIM, 1, 8, clip=1.0, noise_multiplier=0.5)
CENTRAL = SketchGaussian(DIM, 1, 8, clip=1.0, noise_multiplier=0.5, trust=Trust.CENTRAL)


def vector_of(rank: int, round_index: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(100 * rank + round_index)
    return torch.randn(DIM, generator=generator)


def mean_of(method: Method = SKETCH, **options: Any) -> GroupMean:
    return GroupMean(method, **{"key": KEY, **options})


def rounds_of(mean: GroupMean, rank: int, count: int) -> Tensor:
    return torch.stack([mean.mean(vector_of(rank, mean.round_index)) for _ in range(count)])


def contract(case: Case, rank: int) -> Tensor:
    mean = GroupMean(case.method, key=case.key, trusted_group=True)
    weights = first_weights()
    for index in range(4):
        weights = applied(weights, mean.mean(gradient(weights, rank, index)))
    return weights


def written(case: Case, rank: int) -> dict[str, Any]:
    """Two rounds with memory of their own, and the same two into the vectors themselves."""
    options = {"key": case.key, "trusted_group": True}
    vectors = [gradient(first_weights(), rank, index) for index in range(2)]
    plain, into = (GroupMean(case.method, **options) for _ in range(2))  # type: ignore[arg-type]
    expected = [plain.mean(vector) for vector in vectors]
    found = [into.mean(vector, out=vector) for vector in vectors]
    same = [one is vector for one, vector in zip(found, vectors, strict=True)]
    return {"expected": torch.stack(expected), "found": torch.stack(vectors), "same": same}


def starting_apart(rank: int) -> list[str]:
    """Rank 1 has something else; all of them must raise, and name it."""
    second = rank == 1
    tries = (
        lambda: mean_of(key=SketchKey.from_integer(4) if second else KEY),
        lambda: mean_of(PlainSketch(DIM, 1, 9) if second else SKETCH),
        lambda: mean_of(Uncompressed(DIM) if second else SKETCH),
        lambda: mean_of(LOCAL, budget=Budget(1.0 + rank, 1e-5)),
        lambda: mean_of(error_feedback=second),
        lambda: mean_of(CENTRAL if second else SKETCH),
    )
    return [error_of(one) for one in tries]


def refused(rank: int) -> list[str]:
    """What no rank may have."""
    del rank
    other = SketchSkellam(DIM, 1, 8, clip=1.0, noise_multiplier=1.0, cohort=3)
    tries = (
        lambda: mean_of(CENTRAL),
        lambda: mean_of(SketchSkellam(DIM, 1, 8, clip=1.0, noise_multiplier=1.0, cohort=WORLD)),
        lambda: mean_of(budget=Budget(1.0, 1e-5)),
        lambda: mean_of(ProvenDiffSketch(DIM, 1, 8, clip=1.0, padding=99, std=1.0)),
        lambda: mean_of(DiffSketch(DIM, 1, 8, per_round=1.0), error_feedback=True),
        lambda: mean_of(Uncompressed(DIM), error_feedback=True),
        lambda: mean_of(PlainSketch(DIM, 3, 8, combine="median"), error_feedback=True),
        lambda: mean_of(other, trusted_group=True),
    )
    return [error_of(one) for one in tries]


def rounds_apart(rank: int) -> dict[str, Any]:
    mean, other = mean_of(), mean_of()
    loaded = error_of(lambda: mean.load_state_dict({**mean.state_dict(), "round_index": 5 * rank}))
    index = mean.round_index
    other._round_index = 5 * rank  # as no state can bring it about
    rounds = error_of(lambda: other.mean(vector_of(rank)))
    layout = mean_of()
    layouts = error_of(lambda: layout.mean(vector_of(rank), layout=f"rank {rank}"))
    after = layout.mean(vector_of(rank))
    return {
        "loaded": loaded, "index": index, "rounds": rounds, "layouts": layouts, "after": after,
    }  # fmt: skip


def planted(rank: int) -> dict[str, Any]:
    """Rank 1 fails before it sends; then both go on."""
    mean = mean_of(LOCAL, budget=Budget(1000.0, 1e-5))
    vector = vector_of(rank)
    short = error_of(lambda: mean.mean(vector[:5] if rank == 1 else vector))
    index = mean.round_index
    nobody = error_of(lambda: mean.mean(vector[:5]))
    return {
        "short": short,
        "nobody": nobody,
        "rounds": [index, mean.round_index],
        "paid": mean.epsilon(1e-5).rounds,
        "after": mean.mean(vector),
    }


def nowhere_to_write(rank: int) -> dict[str, Any]:
    """Rank 1 has no memory that fits; then both go on."""
    mean, vector = mean_of(), vector_of(rank)
    bad = (torch.empty(DIM + 1), torch.empty(DIM, dtype=torch.float64), torch.empty(2 * DIM)[::2])

    def tried(out: Tensor) -> str:
        return error_of(lambda: mean.mean(vector, out=out if rank == 1 else torch.empty(DIM)))

    return {"errors": [tried(out) for out in bad], "after": mean.mean(vector)}


def not_finite(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    vector = vector_of(rank)
    if rank == 1:
        vector[3] = torch.inf
    for name, method in (("sketch", SKETCH), ("proven", LOCAL)):
        mean = mean_of(method, error_feedback=True, immediate=1.0)
        with warnings.catch_warnings(record=True) as caught, logged() as texts:
            warnings.simplefilter("always")
            found[name] = mean.mean(vector)
        found[f"{name} warned"] = [str(one.message) for one in caught]
        found[f"{name} logged"] = texts
        found[f"{name} error"] = float(mean.state_dict().get("memory", torch.zeros(1)).norm())
        found[f"{name} next"] = mean.mean(vector_of(rank, 1))
    huge = mean_of(Uncompressed(DIM))
    found["sum"] = huge.mean(torch.full((DIM,), 3e38))
    return found


def budget(rank: int) -> dict[str, Any]:
    mean = mean_of(LOCAL, budget=Budget(12.0, 1e-5))
    error = ""
    for _ in range(50):
        error = error_of(lambda: mean.mean(vector_of(rank)))
        if error:
            break
    epsilon = mean.epsilon(1e-5)
    return {
        "error": error,
        "index": mean.round_index,
        "epsilon": float(epsilon),
        "words": str(epsilon),
        "again": error_of(lambda: mean.mean(vector_of(rank))),
    }


def noises(rank: int) -> dict[str, Any]:
    """Groups of one: the mean of zeros is the rank's own noise."""
    groups = [dist.new_group([one]) for one in range(WORLD)]
    method, zeros = RawLaplace(DIM, per_round=1.0, clip=1.0), torch.zeros(DIM)
    own = mean_of(method, group=groups[rank])
    again = mean_of(method, group=groups[rank])
    state = own.state_dict()
    drawn = [own.mean(zeros), own.mean(zeros), again.mean(zeros)]
    own.load_state_dict(state)
    return {"own": [*drawn, own.mean(zeros), own.mean(zeros)]}


def central(rank: int) -> Tensor:
    """Means of the same vectors: three rounds, and the first of them again."""
    mean = mean_of(CENTRAL, trusted_group=True)
    state = mean.state_dict()
    found = [mean.mean(vector_of(rank)) for _ in range(3)]
    mean.load_state_dict(state)
    return torch.stack([*found, mean.mean(vector_of(rank))])


def states(rank: int) -> dict[str, Any]:
    options: dict[str, Any] = {"error_feedback": True}
    options["budget"] = Budget(10_000.0, 1e-5)
    whole = mean_of(LOCAL, **options)
    expected = rounds_of(whole, rank, 6)
    half = mean_of(LOCAL, **options)
    first = rounds_of(half, rank, 3)
    state = half.state_dict()
    loaded = mean_of(LOCAL, **options)
    loaded.load_state_dict(state)
    second = rounds_of(loaded, rank, 3)
    forgetful = mean_of(LOCAL, **options)
    forgetful.load_state_dict({k: v for k, v in state.items() if k != "memory"})
    other = mean_of(PlainSketch(DIM, 1, 8), error_feedback=True)
    gathered: list[Any] = [None] * WORLD
    dist.all_gather_object(gathered, state)
    return {
        "expected": expected,
        "found": torch.cat([first, second]),
        "without error": rounds_of(forgetful, rank, 3),
        "epsilon": [float(whole.epsilon(1e-5)), float(loaded.epsilon(1e-5))],
        "norms": [one.state_dict()["memory"].norm().item() for one in (whole, loaded)],
        "other": error_of(lambda: other.load_state_dict(state)),
        "rank": error_of(lambda: loaded.load_state_dict(gathered[1 - rank])),
        "damaged": error_of(lambda: loaded.load_state_dict({**state, "memory": torch.zeros(3)})),
    }


def few_bits(rank: int) -> dict[str, Any]:
    """Six rounds with cells of few bits, the same in two halves, and one round that fails."""
    method = PlainSketch(DIM, 1, 30, bits=4)
    whole, half = (mean_of(method, error_feedback=True) for _ in range(2))
    expected = rounds_of(whole, rank, 6)
    first = rounds_of(half, rank, 3)
    loaded = mean_of(method, error_feedback=True)
    loaded.load_state_dict(half.state_dict())
    second = rounds_of(loaded, rank, 3)
    bare = mean_of(PlainSketch(DIM, 1, 30, bits=8))
    vectors = [vector_of(rank, index) for index in range(200)]
    errors = [bare.mean(vectors[0]) for _ in vectors]
    moving = GaussianMean(
        dim=DIM, clip=1e-3, noise_multiplier=0.1, trust=Trust.CENTRAL, clip_quantile=0.5
    )
    adaptive = mean_of(moving, trusted_group=True)
    rounds_of(adaptive, rank, 8)
    eight = PlainSketch(DIM, 1, 30, bits=8)
    plain = mean_of(eight).mean(vector_of(rank))
    scaled = mean_of(eight, scaler=Scale(65536.0)).mean(65536 * vector_of(rank))
    broken, infinite = mean_of(eight), vector_of(rank)
    infinite[0] = torch.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lost, afterwards = broken.mean(infinite), broken.mean(vector_of(rank))
    uneven, own = mean_of(PlainSketch(DIM, 1, DIM, bits=4)), vector_of(rank) * (100 if rank else 1)
    uneven.mean(own)
    given, told = mean_of(PlainSketch(DIM, 1, 30, bits=4, cell_limit=1e-12)), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            told.append(given.method.round_clip)
            given.mean(vector_of(rank))
    failing = mean_of(method)
    error = error_of(lambda: failing.mean(vector_of(rank)[: 5 if rank == 1 else DIM]))
    return {
        "expected": expected,
        "found": torch.cat([first, second]),
        "limit": whole.method.round_clip,
        "bytes": whole.payload_bytes,
        "saturated": int(whole.saturated),  # type: ignore[arg-type]
        "mean": torch.stack(errors).mean(dim=0),
        "uneven": int(uneven.saturated),  # type: ignore[arg-type]
        "given": told,
        "warned": [str(one.message) for one in caught],
        "clip": adaptive.method.round_clip,
        "scaled": (scaled, 65536 * plain),
        "lost": (bool(lost.isnan().all()), float(afterwards.norm() / plain.norm())),
        "error": error,
        "after": failing.mean(vector_of(rank)),
    }


class Scale:
    def __init__(self, value: float) -> None:
        self.value = value

    def get_scale(self) -> float:
        return self.value


def scaled(rank: int) -> dict[str, Any]:
    plain = mean_of(LOCAL).mean(vector_of(rank))
    same = mean_of(LOCAL, scaler=Scale(1024.0)).mean(1024 * vector_of(rank))
    apart = mean_of(LOCAL, scaler=Scale(2.0**rank))
    return {
        "plain": plain,
        "scaled": same,
        "apart": error_of(lambda: apart.mean(vector_of(rank))),
        "bytes": apart.payload_bytes,
    }


def checks() -> Checks:
    each: dict[str, Check] = {
        **{f"contract {case.name}": silenced(partial(contract, case)) for case in CASES},
        **{f"noised {case.name}": partial(contract, case) for case in CASES},
        **{f"written {case.name}": silenced(partial(written, case)) for case in CASES},
        "silent central": silenced(central),
    }
    own = (
        few_bits,
        starting_apart,
        refused,
        rounds_apart,
        nowhere_to_write,
        budget,
        noises,
        central,
    )
    quiet = (planted, not_finite, states, scaled)
    each |= {one.__name__: one for one in (*own, central)}
    return each | {one.__name__: silenced(one) for one in quiet}


def silenced(check: Check) -> Check:
    """The check without noise, whose results can be compared."""

    def run(rank: int) -> Any:
        with silence():
            return check(rank)

    return run
