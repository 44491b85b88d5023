"""What holds on each of two ranks that make local steps."""

from __future__ import annotations

import io
import logging
import warnings
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diffsketch.ddp import (
    LocalSteps,
    own_gradients,
    same_weights,
)
from diffsketch.ddp.transport import FRAMES_AGAIN
from diffsketch.methods import PlainSketch
from diffsketch.privacy import Budget
from tests.ddp.processes import (
    Checks,
    assert_fails,
    assert_voids,
    error_of,
    everyone,
    example_learns,
    logged,
    same,
)

NONE: dict[str, Any] = {"method": "none"}
SKETCH: dict[str, Any] = {"compression": 8}
PROVEN: dict[str, Any] = {
    "method": "sketch-gaussian", "compression": 4, "clip": 1.0, "noise_multiplier": 5.0,
}  # fmt: skip
LR, MOMENTUM = 0.7, 0.6


def make_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """With a parameter that has gaps in its memory, and one that is not trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)
    first, last = model[0], model[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    first.weight = nn.Parameter(first.weight.detach().t().contiguous().t())
    last.bias.requires_grad_(False)
    return model


def local_of(model: nn.Module, **options: Any) -> LocalSteps:
    return LocalSteps(model, **{"every": 3, "seed": 1, **SKETCH, **options})


def break_digest(local: LocalSteps) -> None:
    """Let this rank fail before it sends."""

    def fail(fragment: int) -> int:
        raise OSError(f"planted in fragment {fragment}")

    local._common.digest = fail  # type: ignore[method-assign]


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([one.detach().reshape(-1).double() for one in model.parameters()])


def change(model: nn.Module, rank: int, step: int) -> None:
    """A step of training, whatever it was: weights move, at each rank in another way."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    with torch.no_grad():
        for one in model.parameters():
            if one.requires_grad:
                one.add_(0.1 * torch.randn(one.shape, generator=generator).to(one.dtype))


def moved(model: nn.Module, local: LocalSteps, rank: int, steps: range) -> list[Tensor]:
    """The weights after each step."""
    found = []
    for step in steps:
        change(model, rank, step)
        local.step()
        found.append(weights_of(model))
    return found


def trainable() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 15), nn.Tanh(), nn.Linear(15, 4))


def train(model: nn.Module, local: LocalSteps | None, rank: int, steps: range) -> None:
    """Gradients are averaged inside a machine; without a model that does it, over its examples."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    for step in steps:
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(1000 * rank + step)
        inputs = torch.randn(6, 8, generator=generator)
        model(inputs).square().mean().backward()
        optimizer.step()
        if local is not None:
            local.step()


def by_hand(rank: int, steps: int, *, every: int, bounds: list[int], delay: int) -> list[Tensor]:
    """The same without compression: float64, one fragment after another, with nothing shared."""
    model = make_model(torch.float64)
    parameters = [one for one in model.parameters() if one.requires_grad]
    count = len(bounds) - 1

    def flat() -> Tensor:
        return torch.cat([one.detach().reshape(-1) for one in parameters])

    def put(values: Tensor) -> None:
        parts = torch.split(values, [one.numel() for one in parameters])
        for one, part in zip(parameters, parts, strict=True):
            one.data.copy_(part.view(one.shape))

    start, buffer, found = flat(), torch.zeros_like(flat()), []
    under_way: dict[int, tuple[int, Tensor, Tensor]] = {}
    for step in range(1, steps + 1):
        change(model, rank, step - 1)
        for index in range(count):
            part = slice(bounds[index], bounds[index + 1])
            if step % every == (index + 1) * every // count % every:
                sent = flat()[part]
                mean = start[part] - sent
                dist.all_reduce(mean)
                under_way[index] = (step + delay, sent, mean / dist.get_world_size())
            if index in under_way and under_way[index][0] == step:
                _, sent, mean = under_way.pop(index)
                buffer[part] = MOMENTUM * buffer[part] + mean
                start[part] -= LR * (mean + MOMENTUM * buffer[part])
                now = flat()
                now[part] += start[part] - sent
                put(now)
        found.append(weights_of(model))
    return found


SCHEDULES: dict[str, dict[str, Any]] = {
    "whole": {"every": 3},
    "fragments": {"every": 5, "fragments": 3},
    "delay": {"every": 4, "delay": 3},
    "both": {"every": 5, "fragments": 2, "delay": 2},
    "float64": {"every": 3, "dtype": torch.float64},
}


def schedule(name: str, rank: int) -> Tensor:
    """Without compression, each step is that by hand."""
    options = dict(SCHEDULES[name])
    model = make_model(options.pop("dtype", torch.float32))
    local = local_of(model, **NONE, **options, compression=None)
    weights = moved(model, local, rank, range(14))
    dim, count = local._weights.dim, options.get("fragments", 1)
    bounds = [dim * index // count for index in range(count + 1)]
    expected = by_hand(
        rank, 14, every=options["every"], bounds=bounds, delay=options.get("delay", 0)
    )
    zero, one = everyone(weights)
    local.finish()
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-5)
    if name in ("whole", "float64"):  # ranks part after each exchange, and meet in the next one
        assert [*map(torch.equal, zero, one)] == [step % 3 == 2 for step in range(14)]
    return weights_of(model)


def sketched(rank: int) -> None:
    """Ranks begin with other weights, and buffers of their own."""
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(make_model(), norm)
    change(model, rank, 99)
    assert norm.running_mean is not None
    norm.running_mean.fill_(float(rank))
    with logged(logging.INFO) as texts:
        local = local_of(model)
    weights = [weights_of(model), *moved(model, local, rank, range(6))]
    zero, one = everyone(weights)
    together = [True, False, False, True, False, False, True]
    assert [*map(torch.equal, zero, one)] == together
    common = torch.cat([part.reshape(-1).double() for part in local.global_weights().values()])
    assert torch.equal(common, torch.cat([weights[-1][:208], weights[-1][212:]]))  # the trained
    assert norm.running_mean[0] == rank
    dense = 4 * local._weights.dim
    sent, received = (
        3 * count for count in local.bytes_per_step
    )  # of two ranks, a ring would send each number once
    # Frames are more than the promise for so few weights, of which half is for cells all the same.
    assert 0.8 * dense / 16 < sent - FRAMES_AGAIN <= dense / 16
    assert sent == received
    assert texts == [
        f"a step sends {sent / 3:.0f} bytes and receives {sent / 3:.0f}: "
        f"{3 * dense / sent:.3g} times less than plain DDP"
    ]
    assert str(local.claim).startswith("No claim")


def bfloat16(rank: int) -> None:
    """Steps too small for the type of the parameters add up."""
    model = nn.Linear(4, 4, bias=False)
    nn.init.ones_(model.weight).bfloat16()
    model = model.to(torch.bfloat16)
    local = local_of(model, **NONE, compression=None, every=1, outer_lr=0.1, outer_momentum=0.0)
    for _ in range(4):
        with torch.no_grad():
            model.weight.sub_(2**-8 if rank else 0)  # one unit in the last place, below 1
        local.step()
        assert model.weight[0, 0].item() == 1.0
    assert abs(local._common._values[0][0].item() - (1 - 4 * 0.1 * 2**-9)) < 1e-6


def resumed(rank: int) -> None:
    """Eleven steps at once; and five, a file, and six of everything made anew."""
    options: dict[str, Any] = {"every": 5, "fragments": 2, "delay": 3}
    whole = make_model()
    expected = moved(whole, local_of(whole, **options), rank, range(11))[6:]
    half = make_model()
    local = local_of(half, **options)
    moved(half, local, rank, range(6))  # one exchange is under way
    file = io.BytesIO()
    torch.save({"model": half.state_dict(), "local": local.state_dict()}, file)
    file.seek(0)
    kept = torch.load(file, weights_only=True)
    for loaded in (True, False):
        again = make_model()
        local = local_of(again, **options)
        again.load_state_dict(kept["model"])
        local.steps = 6
        if loaded:
            local.load_state_dict(kept["local"])
        assert same(moved(again, local, rank, range(6, 11)), expected) == loaded
    state = kept["local"]
    other = local_of(make_model(), **{**options, "delay": 2})
    assert_fails(lambda: other.load_state_dict(state), "delay is 2 here and was 3")
    damaged = {**state, "common": {**state["common"], "momentum": [torch.zeros(3)]}}
    text = "momentum must have the shapes [(104,), (104,)], got [(3,)]"
    assert_fails(
        lambda: local.load_state_dict(damaged if rank else state), text if rank else "MismatchError"
    )
    assert_fails(lambda: local.load_state_dict({}), "every is 5 here and was missing")


def finished(rank: int) -> list[Tensor]:
    """Right after an exchange, twice, from a state; and where rank 1 has made a step more."""
    results = []
    for options in ({"every": 2}, {"every": 4, "delay": 2}):
        model = make_model()
        local = local_of(model, **options)
        before = moved(model, local, rank, range(4))[-1]
        local.finish()
        weights = weights_of(model)
        results.append(weights)
        # With a delay, an exchange is under way, and steps come after it.
        assert torch.equal(weights, before) == ("delay" not in options)
        local.finish()
        again = make_model()
        other = local_of(again, **options)
        other.load_state_dict(local.state_dict())
        other.finish()
        assert same([weights_of(model), weights_of(again)], [weights] * 2)
        assert local.means[0].round_index == (1 if "delay" in options else 2)
    if rank == 1:
        moved(model, local, rank, range(4, 5))
    text = "MismatchError: round 1 is void: rank 0 made no more steps; all must make as many"
    assert_fails(local.finish, text)
    return results


def apart(rank: int) -> Tensor:
    """Rank 1 has something else, or fails; both raise, and can go on."""
    second, alike = rank == 1, "all ranks must have the same "
    for options, text in (
        ({"every": 4}, f"{alike}every, but rank"),
        ({"seed": 2}, f"{alike}key"),
        ({"outer_lr": 0.5}, f"{alike}outer_lr"),
        ({"compression": 16}, f"{alike}method"),
        ({"bits": 2}, f"{alike}method"),
        ({"every": 0}, "ArgumentError: every must be >= 1, got every=0"),
        ({"method": 3}, "ArgumentError: method must be one of"),
        ({"group": "x"}, "ArgumentError: group must be a ProcessGroup or a StoreGroup, got str"),
    ):
        if not second and "Argument" in text:
            text = "MismatchError: rank 1 failed to start, see the error there"
        assert_fails(partial(local_of, make_model(), **(options if second else {})), text)
    base = make_model()  # its last bias is frozen
    if second:
        dict(base.named_parameters())["2.bias"].data[0] += 1e-6
    assert_fails(lambda: local_of(base), f"{alike}frozen parameters")
    other = make_model() if second else nn.Linear(3, 5)
    assert_fails(lambda: local_of(other, **NONE, compression=None), f"{alike}method")
    model = make_model()
    local = local_of(model, every=2)
    moved(model, local, rank, range(2))
    if second:
        local._common._values[0][3] += 1e-6  # as a broken memory would
    change(model, rank, 2)
    local.step()
    assert_fails(local.step, "the same seed, method and layout in round 1")
    model = make_model()
    local = local_of(model, every=1)
    digest = local._common.digest
    if second:
        break_digest(local)
    assert_voids(local.step, "OSError: planted in fragment 0", rank=rank)
    local._common.digest = digest  # type: ignore[method-assign]
    return moved(model, local, rank, range(1))[0]


def not_finite(rank: int) -> None:
    """Rank 1 has NaN: all go back to the weights in common."""
    for step, options in ((4, {"every": 2}), (5, {"every": 2, "delay": 1})):
        model = make_model()
        local = local_of(model, **options)
        moved(model, local, rank, range(3))
        before = local.global_weights()["0.bias"]
        if rank == 1:
            with torch.no_grad():
                next(model.parameters())[0, 0] = torch.nan
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            moved(model, local, rank, range(3, 5))
        own = ["vector of rank 1, which makes"] if rank == 1 else []
        for warned, text in zip(caught, [*own, f"step {step}: the outer step is"], strict=True):
            assert text in str(warned.message)
        assert torch.equal(before, local.global_weights()["0.bias"])
        assert weights_of(model).isfinite().all()
        moved(model, local, rank, range(5, 8))
        assert weights_of(model).isfinite().all()


def private(folder: str, rank: int) -> Any:
    """Silos with a budget for some exchanges, and what is refused there."""
    options: dict[str, Any] = {**PROVEN, "every": 2, "budget": Budget(5.0, 1e-5)}
    model, error, weights = make_model(), "", []
    local = local_of(model, **options, account_file=f"{folder}/silo-{rank}.json")
    while not error:
        change(model, rank, local.steps)
        error = error_of(local.step)
        weights.append(weights_of(model))
    assert error.startswith("BudgetExceeded: 1 more round would bring epsilon to")
    epsilon = local.epsilon(1e-5)
    assert 4.5 < float(epsilon) <= 5.0
    text = f"over {local.steps // 2 - 1} rounds (proven; client unit, replace, local"
    assert text in str(epsilon)
    changed, sync = make_model(), make_model().append(nn.SyncBatchNorm(4))
    change(changed, rank, 0)
    claims = "fragments must be 1: the claim of method='sketch-gaussian'"
    copies = {"account_file": f"{folder}/silo-0.json"}
    for refused_model, more, text in (
        (changed, {}, "all ranks must have the same first weights"),
        (sync, {}, "SyncBatchNorm sends statistics"),
        (make_model(), {"fragments": 2}, claims),
        (make_model(), {"trust": "central"}, "trusted_group must be True"),
        (make_model(), copies, "ranks 0, 1 opened copies of the same one"),
    ):
        assert_fails(partial(local_of, refused_model, **options, **more), text)
    swapped = local_of(make_model(), **options, account_file=f"{folder}/silo-{1 - rank}.json")
    assert str(swapped.epsilon(1e-5)) == str(epsilon)  # it is the silo's, whatever its rank
    return weights[1:-1:2]


def refused(rank: int) -> None:
    """Settings that do not go together, on all ranks."""
    del rank
    for options, text in REFUSED:
        make = options.get("model", make_model)
        settings = {name: value for name, value in options.items() if name != "model"}
        assert_fails(partial(local_of, make(), **settings), text)


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    (
        {"model": lambda: DistributedDataParallel(make_model())},
        "model must not be averaged or sharded over the ranks of group, got rank",
    ),
    ({"delay": 3}, "delay must be in 0..2, got delay=3"),
    ({"fragments": 4}, "fragments must be in 1..3, got fragments=4"),
    (
        {"model": lambda: make_model().requires_grad_(False)},
        "model must have parameters that require a gradient",
    ),
    (
        {"model": lambda: nn.Linear(2, 2, dtype=torch.complex64)},
        "parameters must be of real floating types, got weight of type torch.complex64",
    ),
    ({"method": PlainSketch(5, 1, 2), "compression": None}, "the method must have dim=208"),
    # What `sketch_state` refuses as well is in test_ddp.py.
    *(({name: "x"}, f"{name} must be {needed}, got {name}='x'") for name, needed in {
        "every": "an int", "seed": "an int", "outer_lr": "a number > 0 and finite",
        "outer_momentum": "in [0, 1)", "compression": "a number > 0 and finite",
        "immediate": "a number > 0 and finite", "error_feedback": "True or False",
        "bits": "1 to 8, 16 or 32",
    }.items()),
)  # fmt: skip


def wrapped(rank: int) -> None:
    """A DDP over all ranks that averages nothing, as frameworks need it."""
    weights, norm = [], make_model().append(nn.BatchNorm1d(4))
    for ddp in (False, True):
        module = trainable()
        model = DistributedDataParallel(module) if ddp else module
        if isinstance(model, DistributedDataParallel):
            model.register_comm_hook(None, own_gradients)
        train(model, local_of(model), rank, range(8))
        weights.append(weights_of(module))
    assert torch.equal(*weights)
    tries: tuple[tuple[nn.Module, bool, dict[str, Any], str], ...] = (
        (norm, False, {}, "DistributedDataParallel sends rank 0's buffers"),
        (trainable(), False, {}, "DistributedDataParallel gave rank 0's weights"),
        (
            trainable(), True, {"find_unused_parameters": True},
            "with find_unused_parameters all ranks learn",
        ),
        (norm, True, {}, ""),
    )  # fmt: skip
    for layers, compared, options, text in tries:
        outer = DistributedDataParallel(same_weights(layers) if compared else layers, **options)
        outer.register_comm_hook(None, own_gradients)
        error = error_of(partial(local_of, outer, **PROVEN))
        assert text in error
        assert bool(text) == bool(error)


def guarded(rank: int) -> Any:
    """Rank 1's code raises in its second step, of two to an exchange or to a fragment."""
    void = "MismatchError: round 0 is void: rank 1 failed, see the error there"
    for options, raised in (
        ({"every": 4, "fragments": 2, "delay": 1}, ""),  # with a delay, rank 0 raises a step later
        ({"every": 2}, void),
        ({**PROVEN, "every": 2}, None),
    ):
        model = make_model()
        local = local_of(model, **options)

        def step(index: int) -> None:
            with local.guard():  # noqa: B023
                change(model, rank, index)  # noqa: B023
                if rank == 1 and index == 1:
                    raise OSError("planted")

        with logged() as texts:
            errors = [error_of(partial(step, index)) for index in range(2)]
        if raised is None:  # the claim is proven
            assert errors == ["", ""]
            assert texts == ["step 2 counts with the weights as they are: planted"] * rank
        else:
            assert errors == ["", "OSError: planted" if rank == 1 else raised]
            assert texts == []
    return weights_of(model)


def overlapping(rank: int) -> Tensor:
    """Rank 0 goes on while rank 1 has not sent yet; if it did not, both would wait forever.

    In the first exchange it waits, until all have agreed on the limit of cells of few bits.
    """
    model = make_model()
    local = local_of(model, every=2, delay=1)
    moved(model, local, rank, range(3))
    store: Any = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["rank 0 goes on"])
    moved(model, local, rank, range(3, 4))
    if rank == 0:
        store.set("rank 0 goes on", "")
    moved(model, local, rank, range(4, 5))
    local.finish()
    return weights_of(model)


def zeros(rank: int) -> Tensor:
    """Nothing has changed when the limit of the cells is first agreed on; then rank 1 fails."""
    model = make_model()
    local = local_of(model, every=1)
    before = weights_of(model)
    local.step()
    assert float((weights_of(model) - before).abs().max()) < 1e-5
    if rank == 1:
        local.means[0]._next_scale = lambda _: 1 // 0  # type: ignore[assignment]
    assert_voids(local.step, "ZeroDivisionError", rank=rank, index=1)
    local.means[0].__dict__.pop("_next_scale", None)
    assert not local.means[0]._limit_agreed
    weights = moved(model, local, rank, range(4))[-1]
    assert 0.5 < float((weights - before).norm()) < 20
    return weights


def replaced(rank: int) -> Tensor:
    """A parameter that is new, a damaged state at rank 1; then both go on."""
    model = make_model()
    local = local_of(model, every=1)
    first: Any = next(iter(model.children()))
    kept = first.weight
    first.weight = torch.nn.Parameter(kept.detach().clone())
    assert_fails(local.step, "MismatchError: the trained parameters must stay")
    first.weight = kept
    state = local.state_dict()
    for name, value in (("means", []), ("steps", "x"), ("under_way", [])):
        bad = {**state, name: value} if rank == 1 else state
        assert_fails(partial(local.load_state_dict, bad), "Error")
    local.load_state_dict(state)
    return moved(model, local, rank, range(2))[-1]


CHECKS: Checks = {
    **{f"schedule {name}": partial(schedule, name) for name in SCHEDULES},
    **{
        check.__name__: check
        for check in (
            sketched, bfloat16, resumed, finished, apart, not_finite, refused, wrapped, guarded,
            overlapping, zeros, replaced,
        )
    },
    "example": partial(example_learns, "local_steps.py"),
}  # fmt: skip


def pair_checks(folder: str) -> Checks:
    return {**CHECKS, "private": partial(private, folder)}
