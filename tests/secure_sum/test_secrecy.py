"""Masked inputs look uniform, whatever the input is, until all shares are there; masks cancel.

Chi-square tests of cells of a few bits, from fixed random numbers. Each fails by chance with the
probability `CHANCE`; there are fewer than 30. Every one has a planted error, which it must find.
They show that masks are there, and new for every pair and round. That nobody tells AES-256 in
counter mode from random is an assumption which no such test supports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from diffsketch.secure_sum import Stage, masks
from diffsketch.secure_sum.masks import (
    MemberSecrets,
    Words,
    pair_mask,
    seed_mask,
    to_cells,
    to_words,
)
from diffsketch.secure_sum.messages import MessageKind, Params
from diffsketch.secure_sum.primitives import KeyPair, recover, weights_at_zero
from diffsketch.wire import Message, MessageFormat
from tests.secure_sum.helpers import LocalRound, make_params, start

CHANCE = 1e-9
BITS, CELLS, COUNT = 4, 16_384, 4
LAYOUT = MessageFormat("sketch-skellam", 9, (1, CELLS), "unsigned", BITS)
INPUTS: dict[str, Callable[[int], Tensor]] = {
    "zeros": lambda _: torch.zeros(1, CELLS, dtype=torch.int64),
    "largest": lambda _: torch.full((1, CELLS), (1 << BITS) - 1),
    "own number": lambda index: torch.full((1, CELLS), index),
    "steps": lambda _: torch.arange(CELLS).reshape(1, CELLS) * (1 << BITS) // CELLS,
}


def is_uniform(values: Tensor, bits: int = BITS) -> bool:
    counts = np.bincount(values.flatten().numpy(), minlength=1 << bits)
    return float(stats.chisquare(counts).pvalue) > CHANCE


def are_uniform_together(left: Tensor, right: Tensor) -> bool:
    return is_uniform(left << BITS | right, 2 * BITS)


def unmasked(cells: Tensor, words: Words) -> Tensor:
    return (cells - torch.from_numpy(words.astype(np.int64))) & ((1 << BITS) - 1)


def play(name: str = "zeros", **changes: Any) -> LocalRound:
    """Until all have masked their inputs, of whom 4 is then taken as dropped out."""
    played = start(make_params(COUNT, layout=LAYOUT, **changes), roots=b"secrecy")
    played.inputs = {index: INPUTS[name](index) for index in played.clients}
    return played.until(Stage.UNMASK, {4: Stage.MASKED})


def seen(played: LocalRound, index: int) -> Tensor:
    """The masked input; that of 4 as well, which comes too late and is seen all the same."""
    params, reply = played.params, played.answer(index, played.requests[Stage.MASKED][index])
    message = Message.from_bytes(
        reply[52:], LAYOUT, round_index=params.round_index, fingerprint=params.fingerprint
    )
    return message.cells.flatten()


def secret_of(played: LocalRound, owner: int) -> bytes:
    """What the server computes from the shares that it is sent."""
    params, shares = played.params, {}
    for index in played.server.requests():
        values = played.listed(played.answer(index), MessageKind.UNMASK)
        shares[params.points[index]] = values[owner][1:]
    return recover(weights_at_zero(list(shares)), list(shares.values()))


def without_own_mask(played: LocalRound, index: int) -> Tensor:
    """All that is known of the input of a member in the sum."""
    params = played.params
    return unmasked(seen(played, index), seed_mask(secret_of(played, index), index, params))


def without_pair_masks(played: LocalRound, index: int) -> Tensor:
    """All that is known of an input that came too late: the masks of its pairs are uncovered."""
    params, key = played.params, KeyPair(secret_of(played, index))
    cells = seen(played, index)
    for other in params.members:
        if other != index:
            public = played.clients[other]._secrets.mask.public
            cells = unmasked(cells, pair_mask(key, public, (index, other), params))
    return cells


def no_mask(*_: object) -> Words:
    return np.zeros(CELLS, np.uint32)


@pytest.mark.parametrize("name", INPUTS)
def test_masked_inputs(name: str) -> None:
    played = play(name)
    for index in played.clients:
        assert is_uniform(seen(played, index))


def test_inputs_without_masks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "seed_mask", no_mask)
    monkeypatch.setattr(masks, "pair_mask", no_mask)
    for name in ("zeros", "largest", "own number"):
        assert not is_uniform(seen(play(name), 1))


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_in_the_sum_without_their_own_masks(name: str) -> None:
    """Those of two members, together: their sum with the third's is all that is fixed."""
    played = play(name)
    one, two, three = (without_own_mask(played, index) for index in (1, 2, 3))
    assert are_uniform_together(one, two)
    assert are_uniform_together(two, three)


def test_missing_pair_masks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "pair_mask", no_mask)
    played = play("own number")
    assert not is_uniform(without_own_mask(played, 2))
    assert torch.equal(without_own_mask(played, 2), played.inputs[2].flatten())


def test_one_mask_for_all_pairs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    key = KeyPair(bytes(range(32)))

    def same(_: KeyPair, __: bytes, pair: tuple[int, int], params: Any) -> Words:
        mask = pair_mask(key, key.public, (2, 1), params)
        return mask if pair[0] > pair[1] else np.negative(mask)

    monkeypatch.setattr(masks, "pair_mask", same)
    played = play()
    # Each alone looks well where masks do not cancel: 1 subtracts three times the mask, 2 once.
    assert is_uniform(without_own_mask(played, 1))
    assert not are_uniform_together(without_own_mask(played, 1), without_own_mask(played, 2))


@pytest.mark.parametrize("name", INPUTS)
def test_an_input_that_comes_too_late(name: str) -> None:
    """Its pairs' masks are uncovered, since it counts as dropped out; its own mask hides it."""
    played = play(name)
    assert is_uniform(without_pair_masks(played, 4))


def test_a_missing_own_mask_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why there are two masks: with one, an input that comes late is uncovered."""
    monkeypatch.setattr(masks, "seed_mask", no_mask)
    played = play("own number")
    assert is_uniform(seen(played, 4))
    assert torch.equal(without_pair_masks(played, 4), played.inputs[4].flatten())
    assert not is_uniform(without_pair_masks(played, 4))


@pytest.mark.parametrize(
    "changes", [{"round_index": 6}, {"run": b"another run of the tests"}, {"min_present": 4}]
)
def test_masks_are_not_used_again(changes: dict[str, Any]) -> None:
    """In another round they are unrelated, even if the random numbers were the same."""
    first = play("own number")
    again = start(make_params(COUNT, layout=LAYOUT, **changes), roots=b"secrecy")
    again.inputs = first.inputs
    again.until(Stage.UNMASK)
    for index in first.clients:
        assert are_uniform_together(seen(first, index), seen(again, index))


def test_masks_used_again_are_found() -> None:
    """The same round played twice, with another input."""
    first, again = play("zeros"), play("own number")
    assert torch.equal(
        (seen(again, 3) - seen(first, 3)) & ((1 << BITS) - 1), again.inputs[3].flatten()
    )
    assert not are_uniform_together(seen(first, 3), seen(again, 3))


ONE, TWO, THREE = (KeyPair(bytes([number]) * 32) for number in (1, 2, 3))
ROUNDS = [make_params(3), make_params(3, round_index=6), make_params(3, run=b"another run here")]


@pytest.mark.parametrize("bits", [1, 20, 32, 33, 62])
def test_masks_of_a_pair_cancel(bits: int) -> None:
    params = make_params(3, layout=MessageFormat("sketch-skellam", 9, (2, 3), "unsigned", bits))
    ours = pair_mask(ONE, TWO.public, (1, 2), params)
    theirs = pair_mask(TWO, ONE.public, (2, 1), params)
    assert not (ours + theirs).any()
    assert ours.any()
    cells = start(params).inputs[1]
    masked = to_words(cells, params.layout) + ours
    assert to_cells(masked + theirs, params.layout).equal(cells)


def test_masks_are_unrelated() -> None:
    """Of 6 words each: two are the same by chance with a probability below 2**-180."""
    masks = []
    for params in ROUNDS:
        masks += [seed_mask(bytes(32), index, params) for index in (1, 2)]
        masks += [pair_mask(TWO, ONE.public, pair, params) for pair in ((2, 1), (3, 1), (3, 2))]
        masks.append(pair_mask(TWO, THREE.public, (2, 1), params))
    assert len({mask.tobytes() for mask in masks}) == len(masks) == 18
    assert not np.array_equal(masks[0], -masks[1])


def secrets_of(params: Params, index: int = 1, root: bytes = bytes(32)) -> MemberSecrets:
    return MemberSecrets(root, index, params=params, identity=None)


def test_own_secrets_are_of_one_round_and_member() -> None:
    owners = [secrets_of(params, index) for params in ROUNDS for index in (1, 2)]
    found = [part for own in owners for part in (own.seed, own.mask.secret, own.cipher.secret)]
    shares = [share for own in owners for pair in own.split([1, 2, 3]).values() for share in pair]
    assert len(set(found)) == 18
    assert len(set(shares)) == 36


def test_channels_are_of_one_round_pair_and_direction() -> None:
    own = {index: secrets_of(ROUNDS[0], index) for index in (1, 2, 3)}
    keys = {index: secrets.public for index, secrets in own.items()}
    there = own[1].channel(keys, sender=1, recipient=2)
    assert there == own[2].channel(keys, sender=1, recipient=2)
    others = [
        own[1].channel(keys, sender=2, recipient=1),
        own[1].channel(keys, sender=1, recipient=3),
    ]
    # The same keys in another round: only the context differs.
    twin = secrets_of(ROUNDS[1])
    twin.cipher = own[1].cipher
    others.append(twin.channel(keys, sender=1, recipient=2))
    assert len({there[0], *(key for key, _ in others)}) == 4
    assert len({there[1], *(bound for _, bound in others)}) == 4
