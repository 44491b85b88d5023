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
_DIGEST_BYTES = 16  # collisions need 2**64 attempts


def run_identity(task: Task, seed: int, settings: str) -> str:
    """Describe the run that a state belongs to. Reads all data: 0.2 s for 188 MB.

    Guarantees (`tests/training/test_simulation_state.py`): the same for the same run, on any
    device; another for other settings, examples, labels, owners of examples or models.

    Args:
        task: The task.
        seed: Seed of the run.
        settings: Everything else that changes a release.
    """
    # The test set as well: all evaluations of a continued run are of one set.
    devices, test = task.devices, task.test
    about = devices.examples.inputs, devices.examples.labels, devices.starts, devices.persons
    data = tensor_digest(*(values for values in about if values is not None))
    text = (
        f"task={task.name!r}, data={data}, test={tensor_digest(test.inputs, test.labels)}, "
        f"model={_digest(str(task.model(seed)).encode())}, seed={seed}, {settings}"
    )
    # Only where there is one, so that the identity of other runs stays what it was.
    if task.loss is not None:
        text += f", loss={_digest(_name_of(task.loss).encode())}"
    if task.keep_local:
        text += ", keep_local=True"
    return text


def _name_of(loss: Loss) -> str:
    """Return the name of a function, or the repr of an object."""
    name = getattr(loss, "__qualname__", None)
    return repr(loss) if name is None else f"{loss.__module__}.{name}"


def run_noise_key(task: Task, seed: int, identity: str) -> NoiseKey:
    """Derive a key of the noise that changes with anything in a run.

    The first weights count as well, and the first value of a custom loss. They are not in the
    identity: other machines may round them differently, and a run may be continued there, with
    other noise from then on.
    """
    model = task.model(seed)
    weights = tensor_digest(*model.state_dict().values())
    secret, text = NoiseKey.from_integer(seed).secret, f"{identity}, weights={weights}"
    if task.loss is not None:  # a name does not tell what a loss computes
        # A value of the loss on a few examples, in all bits: two functions may share a name.
        inputs, labels = task.devices.examples.inputs, task.devices.examples.labels
        model = working_copy(model, keep_local=task.keep_local).eval().to(inputs.device)
        with torch.no_grad():
            loss = task.loss(scores_of(model(inputs[:_PROBED])), labels[:_PROBED])
        text += f", loss={float(loss).hex()}"
    digest = hashlib.blake2b(text.encode(), key=secret, digest_size=32, person=b"ds-run-noise")
    return NoiseKey(digest.digest())


def tensor_digest(*tensors: Tensor) -> str:
    """Compute a digest of types, shapes and values; the same wherever the tensors are.

    >>> tensor_digest(torch.zeros(2)) == tensor_digest(torch.zeros(1, 2))
    False
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"ds-run-tensors")
    for tensor in tensors:
        # Types and shapes first, so that no two lists of tensors have the same bytes.
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1)
        content: Any = values.view(torch.uint8).numpy()  # no copy
        digest.update(content)
    return digest.hexdigest()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES, person=b"ds-run-content").hexdigest()
