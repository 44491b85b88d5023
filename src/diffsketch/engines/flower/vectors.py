"""Flower's named arrays as one vector, and back.

A vector has the floating-point arrays in the order of the record, flat, in float32. Whole numbers
(counters of batches, for one) are no part of it: they stay as the server has them.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError

__all__ = ["cast_like", "check_layout", "digest_of", "flat", "length_of", "moved"]

_DIGEST_BYTES = 16


def length_of(arrays: ArrayRecord) -> int:
    """How long the vector is.

    Raises:
        ArgumentError: There is no floating-point array.
    """
    length = sum(math.prod(one.shape) for one in arrays.values() if _is_floating(one))
    if length < 1:
        raise ArgumentError("arrays must have floating-point values, got none")
    return length


def flat(arrays: ArrayRecord) -> Tensor:
    """The vector.

    >>> record = ArrayRecord({"a": Array(np.float32([[1, 2]])), "steps": Array(np.array([7]))})
    >>> flat(record)
    tensor([1., 2.])
    """
    parts = [_values(one).reshape(-1) for one in arrays.values() if _is_floating(one)]
    return torch.from_numpy(np.concatenate(parts).astype(np.float32, copy=False))


def moved(arrays: ArrayRecord, step: Tensor) -> ArrayRecord:
    """New arrays: the vector plus a step of its length. Server and clients compute it alike."""
    found, start, values = dict[str, Array](), 0, step.numpy()
    for name, one in arrays.items():
        old = _values(one)
        if _is_floating(one):
            part = values[start : start + old.size].reshape(old.shape)
            start += old.size
            with np.errstate(over="ignore"):  # whoever calls looks for what is not finite
                old = (old.astype(np.float32) + part).astype(old.dtype)
        found[name] = Array(old)
    return ArrayRecord(found)


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


def _is_floating(array: Array) -> bool:
    return np.issubdtype(np.dtype(array.dtype), np.floating)


def _values(array: Array) -> npt.NDArray[np.generic]:
    return array.numpy()
