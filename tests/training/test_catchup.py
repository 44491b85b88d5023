"""What devices download, in examples computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from diffsketch.errors import ArgumentError
from diffsketch.training.clients import Downloads, behind

DOWNLOADS = Downloads(round_bytes=100, model_bytes=350)


def test_three_rounds_by_hand() -> None:
    synced = np.zeros(4, np.int64)
    # Round 0: nothing was published yet, and the first model follows from the seed.
    first, synced = DOWNLOADS.catch_up(synced, np.array([0, 1]), round_index=0)
    assert (first, synced.tolist()) == (0, [0, 0, 0, 0])
    # Round 1: both lack round 0.
    second, synced = DOWNLOADS.catch_up(synced, np.array([1, 2]), round_index=1)
    assert (second, synced.tolist()) == (200, [0, 1, 1, 0])
    # Round 3: device 1 lacks rounds 1 and 2; device 3 lacks all three, 300 < 350.
    third, synced = DOWNLOADS.catch_up(synced, np.array([1, 3]), round_index=3)
    assert (third, synced.tolist()) == (200 + 300, [0, 3, 1, 3])
    # Round 4: device 0 lacks four rounds, 400 > 350: it takes the model. Device 3 lacks one.
    fourth, synced = DOWNLOADS.catch_up(synced, np.array([0, 3]), round_index=4)
    assert (fourth, synced.tolist()) == (350 + 100, [4, 4 - 1, 1, 4])


def test_not_changed_in_place() -> None:
    synced = np.zeros(2, np.int64)
    DOWNLOADS.catch_up(synced, np.array([0]), round_index=5)
    assert synced.tolist() == [0, 0]


def test_nobody_downloads_nothing() -> None:
    total, _ = DOWNLOADS.catch_up(np.zeros(2, np.int64), np.array([], np.int64), round_index=5)
    assert total == 0


def test_broadcast() -> None:
    assert DOWNLOADS.broadcast(10) == 1000


def test_bad_input() -> None:
    with pytest.raises(ArgumentError, match="round_bytes must be >= 1"):
        Downloads(0, 1)
    with pytest.raises(ArgumentError, match="model_bytes must be >= 1"):
        Downloads(1, 0)


def test_who_is_behind() -> None:
    synced = np.array([0, 3, 2, 3])
    assert behind(synced, np.array([0, 1, 2]), round_index=3) == 2
    assert behind(np.zeros(4, np.int64), np.array([0, 1]), round_index=0) == 0
