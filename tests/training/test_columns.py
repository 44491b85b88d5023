"""Values that share their arrays: each is as if it had its own, whatever becomes of the others."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.training.clients import Columns

CLIENTS = 6
steps = st.tuples(
    st.integers(0, 100),  # which of the values there are is changed
    st.lists(st.integers(0, CLIENTS - 1), unique=True, max_size=4),
    st.sampled_from(["one", "two", "three"]),
)


def as_lists(columns: Columns) -> dict[str, Any]:
    return {name: columns.whole(name).tolist() for name in columns.names}


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=12), st.randoms(use_true_random=False))
def test_any_one_can_be_changed_at_any_time(sequence: list[Any], order: Any) -> None:
    found = [Columns({"one": np.zeros(CLIENTS, np.int64)})]
    expected: list[dict[str, Any]] = [{"one": np.zeros(CLIENTS, np.int64)}]
    for number, (which, places, name) in enumerate(sequence, 1):
        index, at = which % len(found), np.array(places, np.int64)
        shape = (len(places),) if name == "one" else (2, len(places))
        values = np.full(shape, number)
        found.append(found[index].changed(at, {name: values}))
        copy = {key: value.copy() for key, value in expected[index].items()}
        whole = CLIENTS if name == "one" else (2, CLIENTS)
        copy.setdefault(name, np.zeros(whole, np.int64))[..., at] = values
        expected.append(copy)
        at[:] = 0  # what is handed over may be used again
    for index in order.sample(range(len(found)), len(found)):
        want = {name: value.tolist() for name, value in expected[index].items()}
        assert as_lists(found[index]) == want


def test_an_interrupt_half_way_changes_nothing() -> None:
    before = Columns({"one": np.zeros(3), "two": np.ones(3)})
    values: dict[str, Any] = {"one": np.full(2, 7.0), "two": Broken()}
    with pytest.raises(KeyboardInterrupt):
        before.changed(np.array([0, 2]), values)
    assert as_lists(before) == {"one": [0, 0, 0], "two": [1, 1, 1]}
    after = before.changed(np.array([1]), {"two": np.array([5.0])})
    assert as_lists(after) == {"one": [0, 0, 0], "two": [1, 5, 1]}


class Broken:
    """Values that cannot be written."""

    shape, dtype = (2,), np.dtype(float)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt


def test_arrays_are_changed_in_place_and_old_values_are_forgotten() -> None:
    columns = Columns({"one": np.zeros(3)})
    first, array = weakref.ref(columns), columns._arrays["one"]
    for _ in range(5):
        columns = columns.changed(np.array([1]), {"one": columns.at("one", np.array([1])) + 1})
    gc.collect()
    assert columns._arrays["one"] is array
    assert first() is None
    assert as_lists(columns) == {"one": [0, 5, 0]}
