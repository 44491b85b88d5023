"""Flower's named arrays as one vector, and back.

A vector has the floating-point arrays in the order of the record, flat, in float32. Whole numbers
(counters of batches, for one) are no part of it: they stay as the server has them. Nor are arrays
that clients keep to themselves, by name: running statistics, which noise would make useless (a
variance below zero), have to be among them (`tests/flower/test_flower_local.py`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError

__all__ = [
    "cast_like",
    "check_layout",
    "digest_of",
    "flat",
    "is_local",
    "length_of",
    "local_names",
    "moved",
    "with_own",
    "without_words",
]

_DIGEST_BYTES = 16
_STATISTICS = frozenset(
    {"running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance"}
)


def local_names(keep_local: Collection[str]) -> frozenset[str]:
    """Names of arrays that clients keep to themselves, as an argument has them."""
    if isinstance(keep_local, str) or not all(isinstance(one, str) for one in keep_local):
        raise ArgumentError(f"keep_local must be a collection of names, got {keep_local!r}")
    return frozenset(keep_local)


def is_local(name: str, keep_local: Collection[str]) -> bool:
    """Whether an array is one of those: by its name, or by what follows the last dot of it.

    >>> is_local("layers.2.running_var", {"running_var"}), is_local("2.weight", {"running_var"})
    (True, False)
    """
    return name in keep_local or name.rpartition(".")[2] in keep_local


def without_words(keep_local: Collection[str]) -> str:
    """What a plan's text says of them."""
    return f", without {', '.join(sorted(keep_local))}" if keep_local else ""


def length_of(arrays: ArrayRecord, keep_local: Collection[str] = ()) -> int:
    """How long the vector is.

    Raises:
        ArgumentError: There is no floating-point array; or there are running statistics, as those
            of batch normalisation, which are not kept to themselves.
    """
    shared = {name: one for name, one in arrays.items() if _is_shared(name, one, keep_local)}
    odd = [name for name in shared if is_local(name, _STATISTICS)]
    if odd:
        raise ArgumentError(
            f"arrays must not have running statistics, got {', '.join(odd[:4])}: noise would make "
            "them useless. Give keep_local=('running_mean', 'running_var') to sketch_mod and to "
            "SketchStrategy, so that clients keep their own; or use a layer without (GroupNorm)"
        )
    length = sum(math.prod(one.shape) for one in shared.values())
    if length < 1:
        raise ArgumentError("arrays must have floating-point values, got none")
    return length


def flat(arrays: ArrayRecord, keep_local: Collection[str] = ()) -> Tensor:
    """The vector.

    >>> record = ArrayRecord({"a": Array(np.float32([[1, 2]])), "steps": Array(np.array([7]))})
    >>> flat(record)
    tensor([1., 2.])
    """
    shared = (one for name, one in arrays.items() if _is_shared(name, one, keep_local))
    parts = [_values(one).reshape(-1) for one in shared]
    return torch.from_numpy(np.concatenate(parts).astype(np.float32, copy=False))


def moved(arrays: ArrayRecord, step: Tensor, keep_local: Collection[str] = ()) -> ArrayRecord:
    """New arrays: the vector plus a step of its length. Server and clients compute it alike."""
    found, start, values = dict[str, Array](), 0, step.numpy()
    for name, one in arrays.items():
        old = _values(one)
        if _is_shared(name, one, keep_local):
            part = values[start : start + old.size].reshape(old.shape)
            start += old.size
            with np.errstate(over="ignore"):  # whoever calls looks for what is not finite
                old = (old.astype(np.float32) + part).astype(old.dtype)
        found[name] = Array(old)
    return ArrayRecord(found)


def with_own(arrays: ArrayRecord, own: ArrayRecord | None) -> ArrayRecord:
    """The arrays, with a client's own in place of those that it keeps to itself."""
    if own is None:
        return arrays
    return ArrayRecord({name: own.get(name, one) for name, one in arrays.items()})


def cast_like(arrays: ArrayRecord, like: ArrayRecord) -> ArrayRecord:
    """The arrays with the types and in the order of others.

    Flower's means turn whole numbers into floats, and a vector must not become longer by that.
    """
    check_layout(arrays, like)
    return ArrayRecord(
        {name: Array(_values(arrays[name]).astype(one.dtype)) for name, one in like.items()}
    )


def check_layout(arrays: ArrayRecord, like: ArrayRecord) -> None:
    """Raise a `MismatchError` unless both have the same names and shapes."""
    if set(arrays) != set(like):
        odd = sorted(set(arrays) ^ set(like))
        raise MismatchError(f"arrays must have the same names as the model, got {odd} in one only")
    for name, one in like.items():
        found, wanted = tuple(arrays[name].shape), tuple(one.shape)
        if found != wanted:
            raise MismatchError(f"array {name!r} must have the shape {wanted}, got {found}")


def digest_of(arrays: ArrayRecord) -> bytes:
    """Of names, types, shapes and values."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"ds-flwr-model")
    for name, one in arrays.items():
        values = np.ascontiguousarray(_values(one))
        digest.update(f"{name} {values.dtype} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.digest()


def _is_shared(name: str, array: Array, keep_local: Collection[str]) -> bool:
    floating = np.issubdtype(np.dtype(array.dtype), np.floating)
    return floating and not is_local(name, keep_local)


def _values(array: Array) -> npt.NDArray[np.generic]:
    return array.numpy()
