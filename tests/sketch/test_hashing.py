"""The hash families: known answers, an independent computation, and structure."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from diffsketch import HashSeed, SketchKey
from diffsketch.errors import ArgumentError
from diffsketch.sketch.hashing import FAMILIES, Family, Geometry, SketchLayout, columns_and_signs
from tests.helpers.refusals import each_refused, refused

MASK = (1 << 64) - 1
KEY = SketchKey(bytes(range(32)))


def mix(value: int, first: int, second: int) -> int:
    z = (value + first) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z ^= second
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def locate(i: int, row: int, words: list[int], layout: SketchLayout) -> tuple[int, int]:
    """Column and sign in Python's integers, which cannot overflow."""
    a, b, c = words[2 + 3 * row : 5 + 3 * row]
    if layout.family == "pairwise":
        h = (a * (i % (1 << 32)) + b * (i >> 32) + c) & MASK
        return (h >> 32) * layout.cols >> 32, 1 - 2 * (mix(i, *words[:2]) >> row & 1)
    block, into = divmod(i, layout.geometry.block)
    slot, run = divmod(block, layout.geometry.runs)
    h, g = mix(run, a, b), mix(block, *words[:2])
    turn = ((g >> 32) * into + g) % (1 << 32) >> 31
    column = (slot * layout.geometry.block + into + ((h >> 32) * layout.cols >> 32)) % layout.cols
    return column, 1 - 2 * (turn ^ (h & 1))


LAYOUTS = [
    (7850, 7, 22),
    (10**6, 5, 4000),
    (1 << 40, 64, 40_000),
    (1 << 40, 3, (1 << 31) - 1),
    (1000, 2, 1),
    (5, 4, 100),
    (999_983, 3, 99_991),
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dim", "rows", "cols"), LAYOUTS)
def test_equals_python_integers(family: Family, dim: int, rows: int, cols: int) -> None:
    layout, seed = SketchLayout(dim, rows, cols, family), KEY.seed(11)
    rng = np.random.default_rng(dim)
    some = np.unique(np.concatenate(([0, dim - 1], rng.integers(0, dim, 40))))
    columns, signs = columns_and_signs(some, seed, layout=layout)
    words = [int(w) for w in seed.words_for(rows)]
    for j in range(rows):
        expected = [locate(int(i), j, words, layout) for i in some]
        assert columns[j].tolist() == [column for column, _ in expected]
        assert signs[j].tolist() == [sign for _, sign in expected]


KNOWN = {
    "pairwise": (
        [[132, 227, 25, 589, 766], [252, 829, 52, 351, 637]],
        [[-1, 1, -1, 1, -1], [1, 1, -1, 1, 1]],
    ),
    "blocked": (
        [[416, 417, 839, 539, 141], [802, 803, 375, 603, 601]],
        [[1, -1, -1, 1, 1], [1, -1, -1, 1, 1]],
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_known_answers(family: Family) -> None:
    """Another release must hash alike, or stored and sent tables lose their meaning."""
    layout = SketchLayout(1 << 35, 2, 1000, family)
    some = np.array([0, 1, 12345, 1 << 33, (1 << 35) - 1])
    columns, signs = columns_and_signs(some, KEY.seed(7), layout=layout)
    assert (columns.tolist(), signs.tolist()) == KNOWN[family]


def test_seeds_come_from_keyed_blake2() -> None:
    expected = hashlib.blake2b(
        (7).to_bytes(8, "little"), key=bytes(range(32)), digest_size=32, person=b"ds-round"
    ).digest()
    assert KEY.seed(7).value == expected
    assert len({KEY.seed(r).value for r in range(100)}) == 100
    assert KEY.seed(7) != SketchKey(bytes(32)).seed(7)


def test_secrets_do_not_show() -> None:
    assert bytes(range(32)).hex() not in repr(KEY)
    assert KEY.seed(0).value.hex() not in repr(KEY.seed(0))
    assert KEY.seed(0).fingerprint not in KEY.seed(0).value


def test_bad_secrets_rounds_and_seeds() -> None:
    secrets = [b"short", bytes(33), "0" * 32, 7, None]
    each_refused(ArgumentError, "secret must be 32 bytes", SketchKey, secrets)
    each_refused(ArgumentError, "round_index must be", KEY.seed, [-1, 1 << 64, 1.5, True, None])
    refused(ArgumentError, "value must be", HashSeed, b"short")
    refused(ArgumentError, "number must be", SketchKey.from_integer, -1)


@pytest.mark.parametrize("cols", [1, 2, 15, 16, 22, 154, 1000, 4000, 40_000, 99_991, 1 << 20])
@pytest.mark.parametrize("dim", [1, 17, 7850, 10**6])
def test_a_run_covers_no_column_twice(dim: int, cols: int) -> None:
    geometry = Geometry.of(dim, cols)
    assert geometry.block & (geometry.block - 1) == 0
    assert geometry.block * geometry.slots <= cols
    assert geometry.block * geometry.slots * geometry.runs >= dim
    some = np.arange(min(dim, 200_000))
    run = some // geometry.block % geometry.runs
    columns, _ = columns_and_signs(some, KEY.seed(1), layout=SketchLayout(dim, 2, cols, "blocked"))
    for row in columns:
        assert len(set(zip(run.tolist(), row.tolist(), strict=True))) == some.size


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_do_not_depend_on_their_number(family: Family) -> None:
    some = np.arange(1000)
    few, _ = columns_and_signs(some, KEY.seed(1), layout=SketchLayout(1000, 3, 50, family))
    many, _ = columns_and_signs(some, KEY.seed(1), layout=SketchLayout(1000, 9, 50, family))
    assert np.array_equal(few, many[:3])
