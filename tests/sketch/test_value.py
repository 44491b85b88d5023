"""Sketch values add up only where they belong together."""

from __future__ import annotations

import pytest
import torch

from diffsketch import ArgumentError, CountSketch, MismatchError, Sketch, SketchKey

KEY = SketchKey(bytes(32))
MAKER = CountSketch(100, 3, 10)
ONE = Sketch.of(torch.ones(100), MAKER, KEY.seed(0))


def test_adds_and_queries() -> None:
    total = ONE + ONE + ONE
    assert torch.equal(total.table, 3 * ONE.table)
    expected = MAKER.query(total.table, KEY.seed(0), combine="mean")
    assert torch.equal(total.query(KEY.seed(0), combine="mean"), expected)
    assert total.top_k(KEY.seed(0), 5)[0].shape == (5,)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Sketch.of(torch.ones(100), MAKER, KEY.seed(1)), "different seeds"),
        (Sketch.of(torch.ones(100), MAKER, SketchKey(b"1" * 32).seed(0)), "different seeds"),
        (Sketch.of(torch.ones(100), CountSketch(100, 3, 11), KEY.seed(0)), "different sketches"),
        (
            Sketch.of(torch.ones(100), CountSketch(100, 3, 10, "pairwise"), KEY.seed(0)),
            "different sketches",
        ),
        (Sketch.of(torch.ones(100).double(), MAKER, KEY.seed(0)), "different dtype"),
        (Sketch.of(torch.ones(2, 100), MAKER, KEY.seed(0)), "different shape"),
    ],
)
def test_refuses_strangers(other: Sketch, message: str) -> None:
    with pytest.raises(MismatchError, match=message):
        ONE + other


def test_refuses_other_types_and_seeds() -> None:
    with pytest.raises(TypeError):
        ONE + 1  # type: ignore[operator]
    with pytest.raises(MismatchError, match="seed must be the one"):
        ONE.query(KEY.seed(1))
    with pytest.raises(MismatchError, match="seed must be the one"):
        ONE.top_k(KEY.seed(1), 2)
    with pytest.raises(MismatchError, match="rows=3"):
        Sketch(torch.ones(4, 10), MAKER, KEY.seed(0).fingerprint)
    with pytest.raises(ArgumentError, match="fingerprint"):
        Sketch(torch.ones(3, 10), MAKER, b"short")
