"""Shakespeare by speaking role: the embedded plays, or LEAF's JSON in the user's directory.

Imports nothing of ours but `errors` and this folder's `embedded`, `leaf` and `roles`.
"""

from __future__ import annotations

import lzma
import re
from pathlib import Path
from typing import Literal

from diffsketch.errors import DataError, check
from diffsketch.training.data.embedded import embedded_file, verify_sha256
from diffsketch.training.data.leaf import find_leaf, read_leaf
from diffsketch.training.data.roles import RoleSamples, RoleText, role_samples, split_roles

__all__ = ["load_role_texts", "load_shakespeare"]

_NAME = "tinyshakespeare.txt.xz"
_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def load_role_texts() -> tuple[RoleText, ...]:
    """The embedded plays by role, in order of appearance.

    A role's text is its speeches joined by newlines. A role that is named without saying anything
    counts as an empty speech, and roles that never say anything are left out.

    The source has one character outside `LETTERS`, a slip (`sha$l`); it is read as `shall`, so that
    one alphabet serves this text and LEAF's.

    Guarantees: 299 roles, and no speech is lost (`test_no_speech_is_lost`).

    Raises:
        DataError: The embedded file is missing, damaged or not the published one.

    >>> roles = load_role_texts()
    >>> len(roles), roles[0].name, roles[0].text[:14]
    (299, 'First Citizen', 'Before we proc')
    """
    file = embedded_file(_NAME)
    try:
        content = lzma.decompress(file.read_bytes())
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"{file}: damaged or unreadable: {error}") from error
    verify_sha256(content, _SHA256, origin=file)
    return _parse_plays(content.decode("ascii").replace("sha$l", "shall"))


def load_shakespeare(
    directory: Path | str | None = None, *, split: Literal["all", "train", "test"] = "all"
) -> tuple[RoleSamples, ...]:
    """Load Shakespeare as next-character samples, one `RoleSamples` per role.

    The roles of the paper's experiment, each divided into training and test samples, are
    `split_roles(select_roles(load_shakespeare()))`: selecting goes by all of a role's samples, so
    it comes before dividing.

    Args:
        directory: A directory with LEAF's JSON: `all_data/*.json` (or `*.json` directly in it)
            for all samples, `train/*.json` and `test/*.json` for LEAF's division. None takes the
            embedded plays, windows of 80 characters with stride 1.
        split: `"all"`, or one part: LEAF's where the directory has LEAF's division, otherwise that
            of `split_roles` (in which a short role has no test samples).

    Raises:
        ArgumentError: `split` is something else.
        DataError: A file is missing, damaged or not in the format.

    References:
        S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018.

    >>> roles = load_shakespeare()
    >>> roles[1].name, roles[1].inputs.shape
    ('All', torch.Size([381, 80]))
    """
    check(split in ("all", "train", "test"), "split", "be 'all', 'train' or 'test'", split)
    if directory is None:
        roles = tuple(map(role_samples, load_role_texts()))
    else:
        divided = find_leaf(Path(directory), split)
        if divided:
            return read_leaf(divided)
        roles = read_leaf(find_leaf(Path(directory), "all"))
    if split == "all":
        return roles
    train, test = split_roles(roles)
    return train if split == "train" else test


def _parse_plays(text: str) -> tuple[RoleText, ...]:
    """Gather the speeches (`Role:`, lines, blank line) of each role."""
    speeches: dict[str, list[str]] = {}
    for block in re.split(r"\n{2,}", text.strip("\n")):
        heading, _, speech = block.partition("\n")
        speeches.setdefault(heading.removesuffix(":"), []).append(speech)
    roles = (RoleText(name, "\n".join(parts)) for name, parts in speeches.items())
    return tuple(role for role in roles if role.text.strip())
