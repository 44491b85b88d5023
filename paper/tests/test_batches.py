"""Gradient inversion of batches: images are blurred, labels are found."""

from __future__ import annotations

import numpy as np
import pytest

from diffsketch.errors import ArgumentError
from paper.batches import invert_batches, likeliest


def test_likeliest_labels_are_taken_one_by_one() -> None:
    counts = np.array([2.2, 0.1, 1.4, 0.3, -0.2, 0.0, 0.0, 0.0, 0.0, 0.2])
    assert sorted(likeliest(counts, 4).tolist()) == [0, 0, 2, 2]


@pytest.mark.slow
def test_batches_hide_images_in_part() -> None:
    """Ten batches of ten: blurred, the more so the smaller the table; labels are found.

    One hundred similarities of nothing would have a mean of 0 with a standard error of 0.025.
    """
    found = invert_batches(10)
    means = [each.similarities.mean() for each in found]
    assert 0.9 > means[0] > means[1] > means[2] > 0.2
    assert found[0].labels_right > 0.95
    assert all(each.labels_right > 0.75 for each in found)
    with pytest.raises(ArgumentError, match="count must"):
        invert_batches(0)
