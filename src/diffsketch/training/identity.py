"""What makes two runs the same: their settings, data and models. And the key of their noise.

Noise hides what it is added to once. Two runs that add the same noise to different vectors would
show the difference of the vectors to whoever subtracts one from the other, whatever was claimed
for each. So the key of a simulated run's noise comes from its seed and from everything else that
changes what it releases: one key, one release.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from diffsketch.training.task import Task
from diffsketch.privacy.noise import NoiseKey

__all__ = ["Identity", "difference", "tensor_digest"]

_SIZE = 16  # bytes of a digest: no two things have the same one


@dataclass(frozen=True, eq=False)
class Identity:
    """Whose state and noise it is. Digests are computed when they are first asked for.

    Guarantees (`tests/training/test_identity.py`): the same for the same run, on whatever device;
    another for other settings, examples, labels, owners of examples or models.

    Args:
        task: Its examples and labels count, who holds which, the test set and the model.
        seed: Of the run.
        settings: All else that changes what is released, in words.
        given: The key of the noise, if it is not to follow from the rest.
    """

    task: Task
    seed: int
    settings: str
    given: NoiseKey | None = None

    @cached_property
    def text(self) -> str:
        """What a state belongs to, in words. Reads all data: a fifth of a second for 188 MB."""
        devices, test = self.task.devices, self.task.test
        data = tensor_digest(devices.examples.inputs, devices.examples.labels, devices.starts)
        tested = tensor_digest(test.inputs, test.labels)
        text = (
            f"task={self.task.name!r}, data={data}, test={tested}, "
            f"model={_digest(str(self._model).encode())}, seed={self.seed}, {self.settings}"
        )
        return text if self.given is None else f"{text}, noise_key={_digest(self.given.secret)}"

    @cached_property
    def noise_key(self) -> NoiseKey:
        """The key as given; else one that is another if anything is different.

        The first weights count as well. They are not in `text`: other machines may round them
        differently, and a run may be continued there, with noise of its own from then on.
        """
        if self.given is not None:
            return self.given
        text = f"{self.text}, weights={tensor_digest(*self._model.state_dict().values())}"
        secret = NoiseKey.from_integer(self.seed).secret
        digest = hashlib.blake2b(text.encode(), key=secret, digest_size=32, person=b"ds-run-noise")
        return NoiseKey(digest.digest())

    @property
    def _model(self) -> nn.Module:
        return self.task.model(self.seed)


def tensor_digest(*tensors: Tensor) -> str:
    """Of types, shapes and values; the same wherever the tensors are.

    >>> tensor_digest(torch.zeros(2)) == tensor_digest(torch.zeros(1, 2))
    False
    """
    digest = hashlib.blake2b(digest_size=_SIZE, person=b"ds-run-tensors")
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1)
        content: Any = values.view(torch.uint8).numpy()  # no copy
        digest.update(content)
    return digest.hexdigest()


def difference(own: str, other: str) -> str:
    """How two texts of `Identity` differ, in words: the first thing that does.

    Args:
        own: Of the simulation that is here.
        other: Of the one that a state belongs to.

    >>> difference("data=a1, method=A(rows=3, cols=4)", "data=a1, method=A(rows=3, cols=5)")
    'method is A(rows=3, cols=4) here and was A(rows=3, cols=5)'
    """
    here, there = _parts(own), _parts(other)
    for name in (*here, *(name for name in there if name not in here)):
        if here.get(name) == there.get(name):
            continue
        if name in _DIGESTS:
            return f"{_DIGESTS[name]} changed since the run began"
        return f"{name} is {here.get(name, 'missing')} here and was {there.get(name, 'missing')}"
    return "its settings are others"


_DIGESTS = {
    "data": "the data has",
    "test": "the test data has",
    "model": "the model has",
    "importance": "what devices count for has",
    "noise_key": "the key of the noise has",
}
"""What is shown as words, since nobody can read a digest."""


def _parts(text: str) -> dict[str, str]:
    """Names and values of `name=value, ...`, where values may have commas inside brackets."""
    found, depth, begin = dict[str, str](), 0, 0
    for place, letter in enumerate(f"{text},"):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            name, _, value = text[begin:place].strip().partition("=")
            found[name] = value
            begin = place + 1
    return found


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_SIZE, person=b"ds-run-content").hexdigest()
