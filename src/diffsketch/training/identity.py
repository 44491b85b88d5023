"""Identity of a run: what its state belongs to, and what its noise follows from."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from diffsketch.privacy.simulated_noise import NoiseKey
from diffsketch.training.models import working_copy
from diffsketch.training.tasks import Loss, Task, scores_of

_PROBED = 16  # examples that a loss is tried with
_DIGEST_BYTES = 16  # no two things have the same one
# Digests in an identity, and the start of a sentence about each: nobody can read a digest.


def run_identity(task: Task, seed: int, settings: str, *, noise_key: NoiseKey | None) -> str:
    """Text of all that a state belongs to. Reads all data: a fifth of a second for 188 MB.

    Guarantees (`tests/training/test_simulation_state.py`): the same for the same run, on whatever
    device; another for other settings, examples, labels, owners of examples or models.

    `settings` has all that changes what is released and is not in the task.
    """
    devices, test = task.devices, task.test
    data = tensor_digest(devices.examples.inputs, devices.examples.labels, devices.starts)
    text = (
        f"task={task.name!r}, data={data}, test={tensor_digest(test.inputs, test.labels)}, "
        f"model={_digest(str(task.model(seed)).encode())}, seed={seed}, {settings}"
    )
    if task.loss is not None:
        text += f", loss={_digest(_name_of(task.loss).encode())}"
    if task.keep_local:
        text += ", keep_local=True"
    return text if noise_key is None else f"{text}, noise_key={_digest(noise_key.secret)}"


def _name_of(loss: Loss) -> str:
    """A function's name, or what an object says of itself."""
    name = getattr(loss, "__qualname__", None)
    return repr(loss) if name is None else f"{loss.__module__}.{name}"


def run_noise_key(task: Task, seed: int, identity: str) -> NoiseKey:
    """Key of the noise that is another one if anything of a run is different.

    The first weights count as well, and the first value of a loss of one's own. They are not in
    the identity: other machines may round them differently, and a run may be continued there, with
    noise of its own from then on.
    """
    model = task.model(seed)
    weights = tensor_digest(*model.state_dict().values())
    secret, text = NoiseKey.from_integer(seed).secret, f"{identity}, weights={weights}"
    if task.loss is not None:  # whose name does not tell what it computes
        some, own = task.devices.examples, working_copy(model, keep_local=task.keep_local).eval()
        with torch.no_grad():
            scores = scores_of(own.to(some.inputs.device)(some.inputs[:_PROBED]))
            text += f", loss={float(task.loss(scores, some.labels[:_PROBED])).hex()}"
    digest = hashlib.blake2b(text.encode(), key=secret, digest_size=32, person=b"ds-run-noise")
    return NoiseKey(digest.digest())


def tensor_digest(*tensors: Tensor) -> str:
    """Digest of types, shapes and values; the same wherever the tensors are.

    >>> tensor_digest(torch.zeros(2)) == tensor_digest(torch.zeros(1, 2))
    False
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"ds-run-tensors")
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1)
        content: Any = values.view(torch.uint8).numpy()  # no copy
        digest.update(content)
    return digest.hexdigest()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES, person=b"ds-run-content").hexdigest()
