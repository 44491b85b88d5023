"""How many items (key, value) a second does one core put into a sketch, beside its peers?

    python -m benchmarks.items [--items 4000000] [--repeat 5]

Each way sums the values of Zipf-distributed 64-bit keys on one thread: into the same table (ours;
NumPy and SciPy with our hashes), a Count-Min sketch (Apache DataSketches, which takes one item a
call), or exact sums by key (pandas; NumPy's bincount where keys are small numbers, which real ones
are not). Least processor time of some turns, since other
work on the machine counts less there. pandas and datasketches are left out where not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse
import torch

from benchmarks.report import print_table
from diffsketch.sketch import CountSketch, SketchKey, hash_keys
from diffsketch.sketch.hashing import columns_and_signs

ROWS, COLS, PEOPLE = 5, 4000, 10
ONE_BY_ONE = 100_000  # items for what takes microseconds each

Way = tuple[str, str, int, Callable[[], Any]]


def ways(count: int) -> Iterator[Way]:
    """Name, what it computes, items and the call of each way."""
    rng = np.random.default_rng(0)
    small = rng.zipf(1.2, count).astype(np.uint64) % np.uint64(1 << 20)
    keys, values = small * np.uint64(0x9E3779B97F4A7C15), rng.standard_normal(count)
    seed = SketchKey.from_integer(0).seed(round_index=0)
    there, numbers = torch.from_numpy(keys), torch.from_numpy(values)
    offsets = torch.arange(0, count + 1, PEOPLE)
    offsets[-1] = count
    few = offsets[: 20_000 // PEOPLE * 10 + 1]
    part = int(few[-1])
    for family, dim in (("pairwise", 1 << 64), ("blocked", 1 << 40)):
        sketch = CountSketch(dim, ROWS, COLS, family)  # type: ignore[arg-type]
        here = there if family == "pairwise" else torch.from_numpy(small).view(torch.int64)
        table = sketch.encode_items(here, numbers, seed)
        sizes = CountSketch(dim, 1, 200, family)  # type: ignore[arg-type]
        persons = partial(sizes.encode_items, here[:part], numbers[:part], seed, offsets=few)
        yield f"ours, {family}", "table", count, partial(sketch.encode_items, here, numbers, seed)
        yield f"ours, {family}, 1x200 a person", "tables", part, persons
        yield f"ours, {family}", "estimates", count, partial(sketch.query_items, table, here, seed)

    layout = CountSketch(1 << 64, ROWS, COLS, "pairwise")

    def hashed() -> tuple[Any, Any]:
        columns, signs = columns_and_signs(keys, seed, layout=layout)
        return columns + np.arange(ROWS)[:, None] * COLS, signs * values

    def by_bincount() -> Any:
        places, weights = hashed()
        return np.bincount(places.ravel(), weights.ravel(), ROWS * COLS)

    def by_add_at() -> Any:
        places, weights = hashed()
        np.add.at(out := np.zeros(ROWS * COLS), places.ravel(), weights.ravel())
        return out

    def by_sparse() -> Any:
        places, weights = hashed()
        shape, zeros = (1, ROWS * COLS), np.zeros(places.size, np.int64)
        return scipy.sparse.coo_array((weights.ravel(), (zeros, places.ravel())), shape).tocsr()

    exact = CountSketch(1 << 64, ROWS, COLS, "pairwise").encode_items(there, numbers, seed)
    if not np.allclose(by_bincount(), exact.numpy().ravel()):
        raise SystemExit("the tables differ")
    yield "NumPy bincount, our hashes", "table", count, by_bincount
    yield "NumPy add.at, our hashes", "table", count, by_add_at
    yield "SciPy sparse, our hashes", "table", count, by_sparse
    ready, weights = (array.ravel() for array in hashed())
    yield (
        "NumPy bincount, columns ready", "table", count,
        lambda: np.bincount(ready, weights, ROWS * COLS),
    )  # fmt: skip
    yield "NumPy bincount, keys < 2^20", "exact", count, lambda: np.bincount(small, values)
    if importlib.util.find_spec("pandas"):
        import pandas as pd

        frame = pd.DataFrame({"key": keys, "value": values})
        yield "pandas groupby", "exact", count, lambda: frame.groupby("key")["value"].sum()
    if importlib.util.find_spec("datasketches"):
        import datasketches

        least = min(count, ONE_BY_ONE)
        listed = list(zip(keys[:least].tolist(), np.abs(values[:least]).tolist(), strict=True))

        def count_min() -> Any:
            sketch = datasketches.count_min_sketch(ROWS, COLS)
            for key, value in listed:
                sketch.update(str(key), value)
            return sketch

        yield "DataSketches count-min", "table", least, count_min
    words = [f"word {key}" for key in small[:ONE_BY_ONE]]
    key = SketchKey.from_integer(0)
    yield "ours, hash_keys", "keys of strings", len(words), lambda: hash_keys(words, key)


def least_seconds(call: Callable[[], Any], repeat: int) -> float:
    """Least time of some calls, after one that is not timed."""
    call()
    times = []
    for _ in range(repeat):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, default=4_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    for name, what, count, call in ways(options.items):
        rate = count / least_seconds(call, options.repeat)
        lines.append([name, what, f"{rate / 1e6:.2f}"])
    title = f"{options.items:,} items, table of {ROWS}x{COLS:,}, one thread"
    print_table(title, ["", "gives", "million items a second and core"], lines)


if __name__ == "__main__":
    main()
