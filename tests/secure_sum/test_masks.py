"""Masks cancel, and every secret is of one round, one pair and one direction."""

from __future__ import annotations

import numpy as np
import pytest

from diffsketch.secure_sum.masks import cells_of, pair_mask, self_mask, words_of
from diffsketch.secure_sum.own import OwnSecrets
from diffsketch.secure_sum.params import Params
from diffsketch.secure_sum.primitives import KeyPair
from diffsketch.wire import MessageFormat
from tests.secure_sum.playing import make_inputs, make_params

ONE, TWO, THREE = (KeyPair(bytes([number]) * 32) for number in (1, 2, 3))
ROUNDS = [make_params(3), make_params(3, round_index=6), make_params(3, run=b"another run here")]


@pytest.mark.parametrize("bits", [1, 20, 32, 33, 62])
def test_masks_of_a_pair_cancel(bits: int) -> None:
    layout = MessageFormat("sketch-skellam", 9, (2, 3), "unsigned", bits)
    params = make_params(3, layout=layout)
    ours = pair_mask(ONE, TWO.public, (1, 2), params)
    theirs = pair_mask(TWO, ONE.public, (2, 1), params)
    assert not (ours + theirs).any()
    assert ours.any()
    cells = make_inputs(params)[1]
    masked = words_of(cells, params) + ours
    assert cells_of(masked + theirs, params).equal(cells)


def test_masks_are_unrelated() -> None:
    """Of 6 words each: two are the same by chance with a probability below 2**-180."""
    masks = []
    for params in ROUNDS:
        masks += [self_mask(bytes(32), index, params) for index in (1, 2)]
        masks += [pair_mask(TWO, ONE.public, pair, params) for pair in ((2, 1), (3, 1), (3, 2))]
        masks.append(pair_mask(TWO, THREE.public, (2, 1), params))
    assert len({mask.tobytes() for mask in masks}) == len(masks) == 18
    assert not np.array_equal(masks[0], -masks[1])


def secrets_of(params: Params, index: int = 1, root: bytes = bytes(32)) -> OwnSecrets:
    return OwnSecrets(root, index, params=params, identity=None)


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
