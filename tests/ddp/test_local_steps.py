"""Local steps in real processes: the outer steps by hand, machines of several ranks, late ranks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from diffsketch.ddp import GroupMean, HookState, LocalSteps, StoreGroup, sketch_state
from diffsketch.ddp.store import StoreMean
from diffsketch.ddp.weights import bits_digest
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods import PlainSketch, SketchGaussian, Uncompressed
from diffsketch.sketch import SketchKey
from tests.ddp.local_checks import (
    SCHEDULES,
    local_of,
    make_model,
    moved,
    pair_checks,
    weights_of,
)
from tests.ddp.machine_checks import four_checks
from tests.ddp.processes import Results, alone, run_checks

slow = pytest.mark.slow  # processes are started
KEY = SketchKey.from_integer(1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_checks(partial(pair_checks, str(tmp_path_factory.mktemp("accounts"))))


@pytest.fixture(scope="module")
def four() -> Results:
    return run_checks(four_checks, world=4)


def all_equal(tensors: list[Tensor]) -> bool:
    return all(torch.equal(one, tensors[0]) for one in tensors)


@slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_outer_steps_are_those_by_hand(name: str, pair: Results) -> None:
    zero, one = pair[f"schedule {name}"]
    for rank in (zero, one):
        for found, expected in zip(rank["found"], rank["expected"], strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    if name in ("whole", "float64"):  # ranks part after each exchange, and meet in the next one
        same = [torch.equal(*both) for both in zip(zero["found"], one["found"], strict=True)]
        assert same == [step % 3 == 2 for step in range(14)]
    assert torch.equal(zero["last"], one["last"])


@slow
def test_ranks_begin_and_go_on_with_the_same_weights(pair: Results) -> None:
    zero, one = pair["sketched"]
    same = [torch.equal(*both) for both in zip(zero["found"], one["found"], strict=True)]
    assert same == [True, False, False, True, False, False, True]
    for rank, found in enumerate((zero, one)):
        kept = torch.cat([found["found"][-1][:208], found["found"][-1][212:]])  # the trained ones
        assert torch.equal(found["common"], kept)
        assert found["buffer"] == rank
        payload, each, dense = found["bytes"]
        assert dense / 8 < payload < 1.6 * dense / 8 + 4 * 2 * 2  # sums have more bits than cells
        assert each == payload / 3
        assert found["claim"].startswith("No claim")


@slow
def test_parameters_of_few_bits_do_not_lose_small_steps(pair: Results) -> None:
    for found in pair["bfloat16"]:
        assert found["common"] == pytest.approx(1 - 4 * 0.1 * 2**-9)
        assert found["found"] == [1.0] * 4


@slow
def test_a_state_continues_to_the_same_bits(pair: Results) -> None:
    zero, one = pair["resumed"]
    for found in (zero, one):
        for order in ("with", "before"):
            assert all(map(torch.equal, found[order], found["expected"])), order
        assert not torch.allclose(found["without"][-1], found["expected"][-1])
        assert "delay is 2 here and was 3" in found["other"]
        assert "every is 5 here and was missing" in found["empty"]
    assert "momentum must have the shapes [(104,), (104,)], got [(3,)]" in one["damaged"]
    assert zero["damaged"].startswith("MismatchError: ")


@slow
def test_finishing_right_after_an_exchange_changes_nothing(pair: Results) -> None:
    zero, one = pair["finished"]
    for found in (zero, one):
        exchanged, *after = found["whole"]
        assert all(torch.equal(weights, exchanged) for weights in after)
        assert found["whole rounds"] == 2
        exchanged, *after = found["delay"]  # its exchange is under way, and steps come after it
        assert not torch.equal(exchanged, after[0])
        assert all_equal(after)
        assert found["delay rounds"] == 1
        assert found["uneven"].startswith("MismatchError: all ranks must have the same seed, ")
    assert all(map(torch.equal, zero["whole"], one["whole"]))


@slow
def test_ranks_that_disagree_raise_together(pair: Results) -> None:
    zero, one = pair["apart"]
    for found in (zero, one):
        assert "all ranks must have the same every, but rank" in found["every"]
        assert "all ranks must have the same key" in found["seed"]
        assert "all ranks must have the same outer_lr" in found["lr"]
        assert "all ranks must have the same method" in found["compression"]
        assert "all ranks must have the same frozen parameters" in found["frozen"]
        assert "all ranks must have the same method" in found["model"]
        assert "the same seed, method and layout in round 1" in found["weights"]
    assert zero["fails"] == "MismatchError: rank 1 failed to start, see the error there"
    assert one["fails"] == "ArgumentError: every must be >= 1, got every=0"
    for name, text in (
        ("kind", "method must be a name or a Method, got int"),
        ("group", "group must be a ProcessGroup or a StoreGroup, got str"),
    ):
        assert one[name] == f"ArgumentError: {text}"
        assert zero[name] == zero["fails"]
    assert zero["planted"] == "MismatchError: round 0 is void: rank 1 failed, see the error there"
    assert one["planted"] == "OSError: planted in fragment 0"
    assert torch.equal(zero["after"][0], one["after"][0])


@slow
def test_weights_that_are_not_finite_are_forgotten(pair: Results) -> None:
    for rank, found in enumerate(pair["not_finite"]):
        for name, step in (("none", 4), ("delay", 5)):
            assert found[name] == [True, True]
            assert found[f"{name} after"]
            own = ["vector of rank 1, which makes"] if rank == 1 else []
            expected = [*own, f"step {step}: the outer step is skipped"]
            for text, part in zip(found[f"{name} warned"], expected, strict=True):
                assert part in text


@slow
def test_a_silo_has_a_budget(pair: Results) -> None:
    zero, one = pair["private"]
    assert all(map(torch.equal, zero["equal"], one["equal"]))
    for found in (zero, one):
        assert found["error"].startswith("BudgetExceeded: 1 more round would bring epsilon to")
        assert found["error"] == found["refused"]["again"]
        assert 4.5 < found["epsilon"] <= 5.0
        rounds = found["steps"] // 2 - 1
        assert f"over {rounds} rounds (proven; client unit, replace, local" in found["words"]
        assert found["files"] == ["silo-0.json", "silo-1.json"]
        assert found["swapped"] == found["words"]  # it is the silo's, whatever its rank
        refused = found["refused"]
        assert "ranks 0, 1 opened copies of the same one" in refused["one account"]
        assert "all ranks must have the same first weights" in refused["first weights"]
        assert "SyncBatchNorm sends statistics" in refused["SyncBatchNorm"]
        assert "fragments must be 1: the claim of method='sketch-gaussian'" in refused["fragments"]
        assert "trusted_group must be True" in refused["trust"]
        assert "budget must not be given where nothing is proven" in refused["budget"]


REFUSED = {
    "DDP": "model must not be averaged or sharded over the ranks of group, got rank",
    "key": "seed or key must be given, and not both",
    "delay": "delay must be in 0..2, got delay=3",
    "fragments": "fragments must be in 1..3, got fragments=4",
    "frozen": "model must have parameters that require a gradient",
    "complex": "parameters must be of real floating types, got weight of type torch.complex64",
    "cols": "compression or cols must be given, and not both",
    "dim": "the method must have dim=208",
    "settings": "settings must not be given with a method that has its own",
    "no tables": "compression is for methods with tables, got method='none'",
    "every": "every must be an int, got every='x'",
    "outer_lr": "outer_lr must be a number > 0 and finite, got outer_lr='x'",
    "outer_momentum": "outer_momentum must be in [0, 1), got outer_momentum='x'",
    "compression": "compression must be a number > 0 and finite, got compression='x'",
    "immediate": "immediate must be a number > 0 and finite, got immediate='x'",
    "seed": "seed must be an int, got seed='x'",
    "error_feedback": "error_feedback must be True or False, got error_feedback='yes'",
    "bits": "bits must be 1 to 8, 16 or 32, got bits=True",
}


@slow
def test_settings_that_do_not_go_together(pair: Results) -> None:
    for found in pair["refused"]:
        assert found.keys() == REFUSED.keys()
        assert [name for name, text in REFUSED.items() if text not in found[name]] == []


@slow
def test_a_ddp_that_averages_nothing_is_a_plain_module(pair: Results) -> None:
    for found in pair["wrapped"]:
        plain, ddp = found["weights"]
        assert torch.equal(plain, ddp)
        buffers, weights, unused, nothing = found["tries"]
        assert "DistributedDataParallel sends rank 0's buffers" in buffers
        assert "DistributedDataParallel gave rank 0's weights" in weights
        assert "with find_unused_parameters all ranks learn" in unused
        assert nothing == ""


@slow
def test_an_error_in_a_guard_is_a_step_or_raised_by_all(pair: Results) -> None:
    zero, one = pair["guarded"]
    assert zero["proven"]["errors"] == one["proven"]["errors"] == ["", ""]
    assert torch.equal(zero["proven"]["weights"], one["proven"]["weights"])
    assert one["proven"]["log"] == ["step 2 counts with the weights as they are: planted"]
    void = "MismatchError: round 0 is void: rank 1 failed, see the error there"
    for name in ("unproven", "fragments"):
        assert one[name]["errors"] == ["", "OSError: planted"]
        assert one[name]["log"] == []
    assert zero["unproven"]["errors"] == ["", void]
    assert zero["fragments"]["errors"] == ["", ""]  # with a delay it is raised one step later


@slow
def test_steps_go_on_during_an_exchange(pair: Results) -> None:
    assert all_equal(pair["overlapping"])


@slow
def test_first_differences_of_zero_do_no_harm(pair: Results) -> None:
    zero, one = pair["zeros"]
    assert zero["error"].endswith("rank 1 failed, see the error there")
    assert one["error"].startswith("ZeroDivisionError")
    assert torch.equal(zero["found"], one["found"])
    for found in (zero, one):
        assert found["still"] < 1e-5
        assert not found["agreed"]
        assert 0.5 < found["moves"] < 20


@slow
def test_the_example_learns(pair: Results) -> None:
    """With a fixed seed; guessing has 10%."""
    zero, one = pair["example"]
    assert zero == one > 0.6


@slow
def test_a_broken_shard_takes_all_machines_back(four: Results) -> None:
    for found in four["machines_not_finite"]:
        assert torch.equal(found["after"], found["before"])
        assert "the outer step is skipped" in found["warned"]
    assert all_equal([one["after"] for one in four["machines_not_finite"]])


@slow
def test_machines_of_several_ranks(four: Results) -> None:
    """Shards and DDP make the same steps; with tables, all ranks have the same weights as well."""
    found = four["machines"]
    for name in ("shards", "ddp", "shards sketched", "ddp sketched"):
        assert all_equal([one[name] for one in found])
        assert {one[f"{name} resumed"] for one in found} == {7}
    torch.testing.assert_close(found[0]["shards"], found[0]["ddp"], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found[0]["shards sketched"], found[0]["shards"], rtol=1e-2)
    dims = [one["shards dim"] for one in found]
    assert dims[0] + dims[1] == found[0]["ddp dim"]  # no rank has the whole vector
    assert dims == [104, 95, 104, 95]
    assert [one["shards bytes"] for one in found] == [4 * dim + 16 for dim in dims]
    assert [one["ddp bytes"] > 0 for one in found] == [True, False, True, False]


@slow
def test_machines_that_are_refused(four: Results) -> None:
    expected = {
        "world": "model must not be averaged or sharded over the ranks of group",
        "inside": "model must not be averaged or sharded over the ranks of group",
        "ddp inside": "model must not be averaged or sharded over the ranks of group",
        "mixed": "model must be sharded as a whole: wrap its root",
        "claim": "model must not be sharded: the claim of method='sketch-gaussian' is about one",
        "hook": "use diffsketch.ddp.LocalSteps between machines",
        "replicas": "DTensors must be sharded along all dimensions of their mesh, got",
    }
    for rank, found in enumerate(four["machines_refused"]):
        assert [name for name, text in expected.items() if text not in found[name]] == []
        first = "over 1 round (proven; client unit, replace, local trust)"
        assert ("ask the first rank" if rank % 2 else first) in found["silo"]
        for name in ("planted", "planted ddp"):  # at rank 0; its machine and its partner raise
            if rank == 0:
                assert found[name] == "OSError: planted in fragment 0"
            elif rank == 2:
                assert "round 0 is void: rank 0 failed" in found[name]
            else:
                assert "another rank of this machine failed to exchange" in found[name]


@slow
def test_gradients_of_shards_can_be_averaged(four: Results) -> None:
    found = four["gradients"]
    expected = (found[0]["own"] + found[2]["own"]) / 2
    for one in found:
        torch.testing.assert_close(one["mean"], expected)
        assert "the ranks of group, got rank" in one["everyone"]


@slow
def test_a_store_has_the_means_of_a_group(four: Results) -> None:
    for found in four["punctual"]:
        group, store = found["found"]
        torch.testing.assert_close(store, group)
        assert torch.equal(found["last"], four["punctual"][0]["last"])
        assert found["round"] == 2  # and nothing was left for the end


@slow
def test_late_ranks_take_over_the_weights_of_the_others(four: Results) -> None:
    for name in ("late", "returning", "machines_in_a_store"):
        assert all_equal([one["weights"] for one in four[name]]), name
    assert four["late"][3]["present"][3] is False
    assert len({one["rounds"] for one in four["returning"]}) == 1
    for found in four["machines_in_a_store"]:
        assert "a StoreGroup is for whole models" in found["shards"]


@slow
def test_stores_that_are_refused(four: Results) -> None:
    results = four["store_refused"]
    for rank, found in enumerate(results):
        void = "MismatchError: round 0 is void: rank 1 failed, see the error there"
        assert found["planted"] == ("OSError: planted in fragment 0" if rank == 1 else void)
        assert "fragments must be 1 with a StoreGroup" in found["fragments"]
        assert "delay must be 0 with a StoreGroup" in found["delay"]
        assert "must claim under local trust in a StoreGroup" in found["trust"]
        assert "all ranks must have the same key, but rank" in found["seed"]
    assert "min_ranks=4 must start within 0.2 seconds, and only [0] did" in results[0]["alone"]
    assert "round 0 must still be in the store, which keeps 2 of 5" in results[3]["old"]


# Ranks of one process, in a store of its own.


def two(**options: Any) -> tuple[StoreMean, StoreMean]:
    store = HashStore()
    options = {"world": 2, "min_ranks": 1, "wait": 0.05, "timeout": 0.5, **options}
    first, second = (
        StoreMean(Uncompressed(3), key=KEY, group=StoreGroup(store, rank=rank, **options))
        for rank in range(2)
    )
    return first, second


ONES = torch.ones(3)


def test_a_late_rank_gets_the_same_mean() -> None:
    first, second = two()
    waits = first.begin(ONES), second.begin(3 * ONES)
    assert [wait().tolist() for wait in waits] == [[2.0] * 3] * 2
    assert first.mean(ONES).tolist() == [1.0] * 3  # alone
    assert second.awaited
    missed = second.missed()
    assert missed is not None
    assert missed.tolist() == [1.0] * 3
    assert not second.present
    assert second.missed() is None
    assert first.round_index == second.round_index == 2


def test_a_message_that_comes_too_late_is_not_in_the_mean() -> None:
    first, second = two()
    alone_mean = first.begin(ONES)
    assert alone_mean().tolist() == [1.0] * 3
    assert second.mean(5 * ONES).tolist() == [1.0] * 3
    assert (first.present, second.present) == (True, False)


def test_a_rank_that_dies_after_it_has_decided_does_not_stop_the_others() -> None:
    first, second = two()
    first.begin(ONES)
    wait = second.begin(3 * ONES)
    assert first.store.decide(0)  # and nothing more
    assert wait().tolist() == [2.0] * 3


def test_a_run_is_over_when_enough_have_finished() -> None:
    first, second = two()
    assert list(first.rest()) == []
    assert second.missed() is None
    assert second.over
    with pytest.raises(MismatchError, match="the run ended before round 0: 1 ranks have called"):
        second.mean(ONES)
    first, second = two(timeout=0.1)
    first.store.min_ranks = 2
    with pytest.raises(MismatchError, match="round 0 must have min_ranks=2 within 0"):
        first.mean(ONES)


def test_no_step_follows_the_end() -> None:
    group = StoreGroup(HashStore(), rank=0, world=1, min_ranks=1)
    local = LocalSteps(make_model(), every=2, seed=1, group=group)
    local.step()
    local.finish()
    with pytest.raises(ArgumentError, match="step must not follow finish with a StoreGroup, got "):
        local.step()
    assert local.steps == 1


def test_a_second_run_in_a_used_store_is_refused() -> None:
    store = HashStore()
    group = StoreGroup(store, rank=0, world=1, min_ranks=1)
    model = make_model()
    local = LocalSteps(model, every=1, seed=1, group=group)
    moved(model, local, 0, range(3))
    before = weights_of(model)
    local.finish()
    local.finish()
    assert torch.equal(weights_of(model), before)  # nothing was left to exchange
    state, again = local.state_dict(), make_model()
    another = LocalSteps(again, every=1, seed=1, group=group)
    with pytest.raises(MismatchError, match="the store must not have a run that is over, got one "):
        moved(again, another, 0, range(1))
    another.load_state_dict(state)
    with pytest.warns(UserWarning, match="step 4: the run is over, as enough ranks") as caught:
        moved(again, another, 0, range(2))
    assert len(caught) == 1
    another.finish()
    assert torch.equal(weights_of(again), before)


def test_the_state_of_another_rank_does_not_know_what_was_sent() -> None:
    method = SketchGaussian(3, 1, 2, clip=1.0, noise_multiplier=5.0)
    store = HashStore()
    groups = [StoreGroup(store, rank=rank, world=2, min_ranks=1, wait=0.05) for rank in range(2)]
    first, second = (StoreMean(method, key=KEY, group=group) for group in groups)
    first.mean(ONES)
    with pytest.raises(ArgumentError, match="account_file must be given to go on from the state"):
        second.load_state_dict(first.state_dict())
    assert second.round_index == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"min_ranks": 3}, "min_ranks must be in 1..2, got min_ranks=3"),
        ({"wait": 0.0}, "wait must be a number > 0"),
        ({"timeout": 0.01}, "timeout must be >= wait=0.05"),
        ({"keep": 1}, "keep must be >= 2"),
    ],
)
def test_groups_that_make_no_sense(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        two(**options)


def test_a_digest_sees_every_bit() -> None:
    values = torch.randn(100, generator=torch.Generator().manual_seed(0))
    found = {bits_digest([values])}
    for index in range(100):
        for bit in (0, 17, 31):
            other = values.clone()
            other.view(torch.int32)[index] ^= 1 << bit if bit < 31 else -(1 << 31)
            found.add(bits_digest([other]))
    both = values.clone()
    both[3], both[4] = -both[3], -both[4]
    found |= {bits_digest([both]), bits_digest([values.flip(0)]), bits_digest([values.double()])}
    assert len(found) == 304
    assert bits_digest([values]) == bits_digest([values.clone()])


@pytest.fixture
def _alone(tmp_path: Any) -> Iterator[None]:
    with alone(tmp_path):
        yield


@pytest.mark.usefixtures("_alone")
def test_nothing_of_a_group_is_pickled() -> None:
    mean = GroupMean(PlainSketch(208, 1, 8), key=KEY)
    model = make_model()
    for one in (mean, HookState(model, mean), local_of(model)):
        for save in (pickle.dumps, copy.deepcopy):
            with pytest.raises(
                TypeError, match=rf"{type(one).__name__} must not be pickled .*state_"
            ):
                save(one)
    state = sketch_state(model, "sketch", compression=4, seed=1)
    assert pickle.loads(pickle.dumps(state.state_dict()))["round_index"] == 0  # noqa: S301


@pytest.mark.usefixtures("_alone")
def test_a_compression_beyond_what_control_takes_is_told() -> None:
    told = "compression=200 leaves 4.16 bytes of 832 for the cells, and 8 more are for control"
    with pytest.warns(UserWarning, match=f"{told}: 68x at the most") as found:
        sketch_state(make_model(), "sketch", compression=200, seed=1)
    assert found[0].filename == __file__  # the line of the user
    with pytest.warns(UserWarning, match=told) as found:
        LocalSteps(make_model(), every=3, seed=1, compression=200)
    assert found[0].filename == __file__
    local_of(make_model(), compression=100)  # and no warning


def test_without_a_process_group() -> None:
    with pytest.raises(ArgumentError, match="call init_process_group before"):
        LocalSteps(nn.Linear(2, 2), every=3, seed=1)


@slow
def test_new_parameters_and_damaged_states_are_refused_by_all(pair: Results) -> None:
    zero, one = pair["replaced"]
    for found in (zero, one):
        assert found["new"].startswith("MismatchError"), found["new"]
        assert "trained parameters must stay" in found["new"]
        assert all(found["errors"])
    assert torch.equal(zero["found"], one["found"])
