"""Cases about one person among those of `diffsketch.analytics`: counts, names and groups.

The adversary knows what all others have, and sees sums of values by key; or which keys of the data
are named; or, as the server of a tree of prefixes does, the sums of its groups and their sizes.

*Planted errors*: what a person adds is not bounded, in each of three ways; keys are named whoever
has them; a key decides the group of who has it, so that sizes of groups tell of a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from diffsketch.analytics.counts import asked_noise, count_total, named_answer, named_noise
from diffsketch.analytics.items import Codes, Floats, Items
from diffsketch.analytics.release import TableNoise, Terms
from diffsketch.analytics.top import PrefixTree, prefix_words
from diffsketch.auditing.audits import Case, Game, Neighbours
from diffsketch.sketch import SketchKey

_DELTA, _PEOPLE, _KEYS, _MOST, _BOUNDS = 0.01, 40, 20, 2, (0.0, 1.0)
_WIDTHS, _BYTES = (16,), 64  # of a tree of one step
_TITLES: Mapping[str, str] = {
    "counts": f"sums of {_KEYS} keys, of which {_MOST} of a person count",
    "names": "keys of the data, named above a threshold",
    "groups": "groups of a tree of prefixes",
}
_ERRORS: Mapping[str, str] = {
    "counts+all-keys": "all keys of a person count",
    "counts+all-values": "values are not clipped to their bounds",
    "counts+all-rows": "rows of a person count as persons of their own",
    "names+no-threshold": "every key is named that somebody has",
    "groups+by-key": "a key decides the group of who has it",
}
ITEM_CASES = (*_TITLES, *_ERRORS)
_Show = Callable[[Codes, SketchKey], Floats]  # from a person's keys to what the adversary sees


def item_case(name: str) -> Case:
    """Make the case of this name, one of `ITEM_CASES`."""
    kind, _, error = name.partition("+")
    terms = Terms(1.0, _DELTA, "distributed" if kind == "groups" else "central")
    show: _Show
    if kind == "counts":
        noise = asked_noise(_KEYS, _MOST, _BOUNDS, _PEOPLE, terms)
        show = partial(_sums, noise, error)
    elif kind == "names":
        noise, threshold = named_noise(1, None, _PEOPLE, terms)
        show = partial(_names, noise, -np.inf if error else threshold)
    else:
        tree = PrefixTree.of(terms, _PEOPLE, _WIDTHS, 5, _BYTES)
        noise, show = tree.noise, partial(_groups, tree, error)

    def play(inputs: Tensor, _: object, hashes: SketchKey) -> Tensor:
        return torch.stack([torch.from_numpy(show(keys.numpy(), hashes)) for keys in inputs])

    # The person's keys: half of all in either world, each in two rows; or a single one.
    count, rows = (_KEYS, 2) if kind == "counts" else (2, 1)
    keys = torch.arange(count).reshape(2, -1).repeat(1, rows)
    return Case(
        name, _TITLES[kind], noise.claim, Game(play, Neighbours(*keys)), deltas=(_DELTA,),
        trials=2000 if kind == "groups" else 8000, planted=_ERRORS.get(name), width=64,
    )  # fmt: skip


def _sums(noise: TableNoise, error: str, keys: Codes, _: SketchKey) -> Floats:
    """Show the sums of each key; each row of the person has the value 3."""
    person = np.arange(len(keys)) if error == "all-rows" else np.zeros_like(keys)
    items = Items(person, keys, np.full(len(keys), 3.0), _PEOPLE, np.arange(_KEYS))
    bounds = (-9.0, 9.0) if error == "all-values" else _BOUNDS
    pieces = items.pieces(_KEYS if error == "all-keys" else _MOST, bounds)
    return noise.release_part(count_total(pieces, _KEYS, noise.mechanism.step)[0])


def _names(noise: TableNoise, threshold: float, keys: Codes, _: SketchKey) -> Floats:
    """Show which keys are named: only this person has its key."""
    sums = np.full(1, round(1 / noise.mechanism.step))
    answer = named_answer([(keys.tolist(), sums)], noise, threshold, "")
    return np.isin([0.0, 1.0], answer.names).astype(np.float64)


def _groups(tree: PrefixTree, error: str, keys: Codes, hashes: SketchKey) -> Floats:
    """Show the sums of all groups but the one that counts, and their sizes."""
    held = np.full(_PEOPLE, 2)
    held[:1] = keys
    groups = tree.deal()[:-1]
    if error:
        groups = [np.flatnonzero(held % len(groups) == group) for group in range(len(groups))]
    words = [prefix_words([held[group]]) for group in groups]
    tables = [tree.row_table(word, hashes.seed(0), row) for row, word in enumerate(words)]
    return np.concatenate([*tables, [len(group) for group in groups]])
