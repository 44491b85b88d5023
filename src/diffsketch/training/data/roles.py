"""Text by speaking role, as samples for predicting the next character.

A role is a device of federated learning. Its samples are windows of text and, for each, the
character that follows, both as codes in a fixed alphabet of 80 characters. Imports nothing of ours
but `errors`; `leaf` and `shakespeare` import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffsketch.errors import DataError, check

__all__ = [
    "LETTERS",
    "WINDOW",
    "RoleSamples",
    "RoleText",
    "encode_text",
    "role_samples",
    "select_roles",
    "split_roles",
]

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The 80 characters of LEAF's Shakespeare task, in its order: a character's code is its place."""

WINDOW = 80
"""Characters in one input, as in LEAF."""

_CODES = bytes(max(LETTERS.find(chr(byte)), 0) for byte in range(256))


@dataclass(frozen=True)
class RoleText:
    """All that one role says.

    Attributes:
        name: The role.
        text: Its speeches, joined by newlines.
    """

    name: str
    text: str


@dataclass(frozen=True, eq=False)
class RoleSamples:
    """One role's samples; do not write into them, since windows may share memory.

    Attributes:
        name: The role.
        inputs: Codes of the windows, uint8, shape (count, window).
        labels: Code of the character after each window, int64, shape (count,).

    Raises:
        ArgumentError: A tensor has another dtype or shape, or the counts differ.
    """

    name: str
    inputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        inputs, labels = self.inputs, self.labels
        check(inputs.dtype == torch.uint8, "inputs.dtype", "be torch.uint8", inputs.dtype)
        check(inputs.ndim == 2, "inputs.ndim", "be 2", inputs.ndim)
        check(labels.dtype == torch.int64, "labels.dtype", "be torch.int64", labels.dtype)
        count = len(inputs)
        check(labels.shape == (count,), "labels.shape", f"be ({count},)", tuple(labels.shape))

    def __len__(self) -> int:
        return len(self.labels)


def encode_text(text: str, origin: str = "text") -> Tensor:
    """The codes of a text's characters, uint8, shape (len(text),).

    Guarantees: `LETTERS[code]` gives each character back (`test_encoding_round_trip`).

    Args:
        text: Any text over `LETTERS`; may be empty.
        origin: Where it comes from, for the message.

    Raises:
        DataError: A character is not one of `LETTERS`.

    >>> encode_text("To be").tolist()
    [44, 67, 1, 54, 57]
    """
    unknown = sorted(set(text) - set(LETTERS))
    if unknown:
        raise DataError(
            f"{origin}: expected the {len(LETTERS)} characters of LETTERS, "
            f"found {', '.join(map(ascii, unknown[:5]))} (first at character "
            f"{min(map(text.index, unknown))})"
        )
    # frombuffer refuses an empty buffer.
    if not text:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(text.encode("ascii").translate(_CODES)), dtype=torch.uint8)


def role_samples(role: RoleText, *, window: int = WINDOW, stride: int = 1) -> RoleSamples:
    """Cut a role's text into windows, each with the character that follows it.

    A text of L characters gives `(L - window - 1) // stride + 1` samples, none if L <= window.
    With stride 1 and window 80 that is LEAF's windowing, and the one that gives the paper's role
    sizes. Windows are views of one buffer, so a small stride costs no memory.

    Guarantees: sample i is `text[i * stride:][:window]` and the next character
    (`test_windows_follow_the_text`).

    Args:
        role: The role.
        window: Characters in an input, >= 1.
        stride: Characters from one window's start to the next one's, >= 1.

    Raises:
        ArgumentError: `window` or `stride` is below 1.
        DataError: The text has a character outside `LETTERS`; the message names the role.

    >>> samples = role_samples(RoleText("All", "Speak!"), window=4)
    >>> ["".join(LETTERS[code] for code in row) for row in samples.inputs.tolist()]
    ['Spea', 'peak']
    >>> [LETTERS[code] for code in samples.labels.tolist()]
    ['k', '!']
    """
    check(window >= 1, "window", "be >= 1", window)
    check(stride >= 1, "stride", "be >= 1", stride)
    codes = encode_text(role.text, f"role {role.name!r}")
    if len(codes) <= window:
        inputs = torch.empty(0, window, dtype=torch.uint8)
        return RoleSamples(role.name, inputs, torch.empty(0, dtype=torch.int64))
    # The last character can only be a label.
    inputs = codes[:-1].unfold(0, window, stride)
    return RoleSamples(role.name, inputs, codes[window::stride].long())


def select_roles(
    roles: Sequence[RoleSamples], *, minimum: int = 64, maximum: int = 2200, count: int = 46
) -> tuple[RoleSamples, ...]:
    """The first `count` roles, in the order given, with `minimum` to `maximum` samples.

    Select before splitting: the bounds are about all of a role's samples. The defaults, on the
    embedded text, give 46 roles with mean 743.6 and standard deviation 549.6 (the paper's table:
    742 and 548; `test_selection_gives_the_known_role_sizes`).

    Args:
        roles: The roles to choose from.
        minimum: The fewest samples a role may have, >= 0.
        maximum: The most samples it may have, >= `minimum`.
        count: How many roles to take, >= 1.

    Raises:
        ArgumentError: A bound is out of range, or fewer than `count` roles fit.
    """
    check(minimum >= 0, "minimum", "be >= 0", minimum)
    check(maximum >= minimum, "maximum", f"be >= minimum={minimum}", maximum)
    check(count >= 1, "count", "be >= 1", count)
    fitting = [role for role in roles if minimum <= len(role) <= maximum]
    requirement = f"be <= {len(fitting)}, the roles with {minimum} to {maximum} samples"
    check(count <= len(fitting), "count", requirement, count)
    return tuple(fitting[:count])


def split_roles(
    roles: Sequence[RoleSamples], *, train_fraction: float = 0.8, stride: int = 1
) -> tuple[tuple[RoleSamples, ...], tuple[RoleSamples, ...]]:
    """Divide each role's samples into its earlier ones (train) and its later ones (test).

    Samples in between, which would share characters with both, are left out: `window // stride` of
    them. A short role can therefore have no test samples; the two results stay aligned by role.

    Guarantees: no character is in a training and in a test sample (`test_split_shares_no_text`).

    Args:
        roles: Roles whose samples are in the order of their text.
        train_fraction: Share of the samples that are for training, in (0, 1); rounded down.
        stride: The stride the samples were cut with, >= 1.

    Returns:
        The training samples and the test samples of every role.

    Raises:
        ArgumentError: `train_fraction` or `stride` is out of range.
    """
    check(0 < train_fraction < 1, "train_fraction", "be > 0 and < 1", train_fraction)
    check(stride >= 1, "stride", "be >= 1", stride)
    train: list[RoleSamples] = []
    test: list[RoleSamples] = []
    for role in roles:
        end = int(train_fraction * len(role))
        start = end + role.inputs.shape[1] // stride
        train.append(RoleSamples(role.name, role.inputs[:end], role.labels[:end]))
        test.append(RoleSamples(role.name, role.inputs[start:], role.labels[start:]))
    return tuple(train), tuple(test)
