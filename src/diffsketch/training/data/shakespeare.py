"""Shakespeare by speaking role: the embedded plays, or LEAF's JSON."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import DataError, check
from diffsketch.training.data.embedded import embedded_file, require, verify_sha256
from diffsketch.training.defaults import TASK_DEFAULTS
from diffsketch.training.models import CharLSTM
from diffsketch.training.tasks import Devices, Examples, Task

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The 80 characters of LEAF's Shakespeare task, in its order: a character's code is its place."""

WINDOW = 80
"""Characters in one input, as in LEAF."""

_ROLES = int(TASK_DEFAULTS["shakespeare"]["workers"])
_SMALLEST, _LARGEST = 64, 2200  # of the paper's experiment: see `load_plays`
_TRAINED = 0.8  # share of a role's samples, rounded down
_HALVES = ("train", "test")
# From a byte of ASCII to a character's code; bytes outside `LETTERS` are refused before.
_CODES = bytes(max(LETTERS.find(chr(byte)), 0) for byte in range(256))


Roles: TypeAlias = Mapping[str, Examples]  # by name: codes of windows (uint8), and of what follows


def encode_text(text: str, origin: str = "text") -> Tensor:
    """Encode the characters of a text: uint8, shape (len(text),).

    Guarantees: `LETTERS[code]` gives each character back (`test_encoding_round_trip`).

    Args:
        text: Any text over `LETTERS`; may be empty.
        origin: Source of the text, named in errors.

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
    # A table look-up for each byte, by the interpreter's own loop.
    codes = np.frombuffer(bytearray(text.encode("ascii").translate(_CODES)), np.uint8)
    return torch.from_numpy(codes)


def role_samples(name: str, text: str) -> Examples:
    """Cut a role's text into windows, each with the character that follows it: LEAF's windowing.

    A text of L characters gives `L - 80` samples. Windows are views of one buffer: do not write
    into them.

    Guarantees: sample i is `text[i:][:80]` and the next character (`test_windows_follow_the_text`).

    Raises:
        DataError: The text has a character outside `LETTERS`; the message names the role.
    """
    codes = encode_text(text, f"role {name!r}")
    if len(codes) <= WINDOW:
        return Examples(codes[:0].reshape(0, WINDOW), codes[:0])
    # The last character can only be a label.
    return Examples(codes[:-1].unfold(0, WINDOW, 1), codes[WINDOW:])


def split_roles(roles: Roles) -> tuple[dict[str, Examples], dict[str, Examples]]:
    """Divide each role's samples into the first four fifths (train) and later ones (test).

    Samples in between, which would share characters with both, are left out: 80 of them. A short
    role can therefore have no test samples.

    Guarantees: no character is in a training and in a test sample (`test_split_shares_no_text`).
    """
    train, test = dict[str, Examples](), dict[str, Examples]()
    for name, role in roles.items():
        # Sample i covers characters i to i + 80, so the next 80 samples share text with the
        # training part.
        end = int(_TRAINED * len(role))
        train[name] = Examples(role.inputs[:end], role.labels[:end])
        test[name] = Examples(role.inputs[end + WINDOW :], role.labels[end + WINDOW :])
    return train, test


_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def load_role_texts() -> dict[str, str]:
    """Load the embedded plays by role, in order of appearance.

    A role's text is its speeches joined by newlines. A role that is named without saying anything
    counts as an empty speech, and roles that never say anything are left out.

    The source has one character outside `LETTERS`, a slip (`sha$l`); it is read as `shall`, so that
    one alphabet serves this text and LEAF's.

    Guarantees: 299 roles, and no speech is lost (`test_no_speech_is_lost`).

    Raises:
        DataError: The embedded file is missing, damaged or not the published one.

    >>> roles = load_role_texts()
    >>> len(roles), roles["First Citizen"][:14]
    (299, 'Before we proc')
    """
    file = embedded_file("tinyshakespeare.txt.xz")
    try:
        content = lzma.decompress(file.read_bytes())
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"{file}: damaged or unreadable: {error}") from error
    verify_sha256(content, _SHA256, origin=file)
    text = content.decode("ascii").replace("sha$l", "shall")
    speeches: dict[str, list[str]] = {}
    for block in re.split(r"\n{2,}", text.strip("\n")):  # `Role:`, lines, blank line
        heading, _, speech = block.partition("\n")
        speeches.setdefault(heading.removesuffix(":"), []).append(speech)
    roles = {name: "\n".join(parts) for name, parts in speeches.items()}
    return {name: said for name, said in roles.items() if said.strip()}


def _leaf_files(directory: Path, *folders: str) -> list[Path]:
    """List the JSON files of the first of these folders that has any, by name."""
    places = [directory / folder for folder in folders]
    try:
        require(directory.is_dir(), directory, "expected a directory with LEAF's JSON, found none")
        for place in places:
            if paths := sorted(path for path in place.glob("*.json") if path.is_file()):
                return paths
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{directory}: cannot be read: {error}") from error
    raise DataError(f"no *.json in {' or '.join(map(str, places))}: expected LEAF's Shakespeare")


def _read_leaf(files: Sequence[Path]) -> dict[str, Examples]:
    """Read the samples of each user of LEAF's files, in the order of `users`, all checked.

    Entries of `user_data` that `users` does not name are ignored: LEAF's division leaves such empty
    entries for users it dropped. So are other keys (`hierarchies`, `raw`).
    """
    roles: dict[str, Examples] = {}
    for path in files:
        where = str(path)
        try:
            content = json.loads(path.read_bytes())
        # Deep nesting exhausts the parser's stack; a wrong encoding is a ValueError.
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{where}: not readable as JSON: {error}") from error
        problem = f"expected a JSON object, found {type(content).__name__}"
        require(isinstance(content, dict), where, problem)
        users, counts = (_field(content, key, list, where) for key in ("users", "num_samples"))
        data = _field(content, "user_data", dict, where)
        problem = f"expected num_samples for each of {len(users)} users, found {len(counts)}"
        require(len(users) == len(counts), where, problem)
        for user, count in zip(users, counts, strict=True):
            problem = f"expected users to be names, found {type(user).__name__}"
            require(isinstance(user, str), where, problem)
            named = f"{where}: user {user!a}"
            require(user not in roles, named, "expected each user once, found it again")
            record = _field(data, user, dict, f"{where}: user_data")
            windows, following = _texts(record, "x", WINDOW, named), _texts(record, "y", 1, named)
            problem = f"expected as many y as x, found {len(windows)} x and {len(following)} y"
            require(len(windows) == len(following), named, problem)
            # Anything but a number is named by its type: it may be too deep or too long to print.
            stated = count if isinstance(count, int | float) else type(count).__name__
            problem = f"num_samples says {stated}, found {len(windows)} samples"
            require(count == len(windows), named, problem)
            inputs = encode_text("".join(windows), f"{named}: x").reshape(-1, WINDOW)
            roles[user] = Examples(inputs, encode_text("".join(following), f"{named}: y"))
    require(bool(roles), ", ".join(map(str, files)), "expected at least one user, found none")
    return roles


def _field(record: dict[str, Any], key: str, kind: type, where: str) -> Any:
    """Return the value of a key that must be there and be of one kind."""
    require(key in record, where, f"expected the key {key!a}, found no such key")
    value = record[key]
    problem = f"expected {key!a} to be a {kind.__name__}, found {type(value).__name__}"
    require(isinstance(value, kind), where, problem)
    return value


def _texts(record: dict[str, Any], key: str, length: int, where: str) -> list[str]:
    """Return a list of texts that must all have this length."""
    texts: list[str] = _field(record, key, list, where)
    for index, text in enumerate(texts):
        is_text = isinstance(text, str)
        if not is_text or len(text) != length:
            shown = len(text) if is_text else type(text).__name__
            problem = f"expected {key}[{index}] to be a string of length {length}, found {shown}"
            require(False, where, problem)
    return texts


def load_shakespeare(directory: Path | str | None = None) -> dict[str, Examples]:
    """Load Shakespeare as next-character samples by role.

    Inputs are codes of windows, uint8, shape (count, 80); labels the code of the next character.
    Do not write into them, since windows may share memory.

    The roles of the paper's experiment are those of `load_task("shakespeare")`.

    Args:
        directory: A directory with LEAF's JSON: `all_data/*.json`, or `*.json` directly in it.
            None takes the embedded plays, in windows of 80 characters.

    Guarantees: malformed content is a `DataError` that names the file and the user
    (`test_malformed_leaf_is_named`, `test_arbitrary_json_never_crashes`).

    Raises:
        DataError: A file is missing, damaged or not in the format: a key is missing, counts
            disagree, a window is not of 80 characters of `LETTERS`, or a user comes twice.

    References:
        S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018.

    >>> roles = load_shakespeare()
    >>> len(roles), roles["All"].inputs.shape
    (299, torch.Size([381, 80]))
    """
    if directory is None:
        return {name: role_samples(name, text) for name, text in load_role_texts().items()}
    return _read_leaf(_leaf_files(Path(directory), "all_data", "."))


def load_plays(workers: int | None, samples: int | None, directory: Path | None, seed: int) -> Task:
    """Take the first roles with 64 to 2,200 samples, each divided into earlier and later text.

    The bounds are about all of a role's samples. On the embedded text, they give 46 roles with mean
    743.6 and standard deviation 549.6 (the paper's table: 742 and 548). Accuracy is on all test
    samples of the chosen roles. Windows are int64.
    """
    del seed  # the text decides
    check(samples is None, "samples", "not be given: a role's text decides", samples)
    # LEAF's own division is kept: dividing again would test on what was meant for training. So
    # a missing half of it is an error.
    if directory is not None and any((directory / half).is_dir() for half in _HALVES):
        train, test = (_read_leaf(_leaf_files(directory, half)) for half in _HALVES)
        sizes = {name: len(r) + len(test.get(name, ())) for name, r in train.items() if len(r)}
    else:
        train, test = split_roles(roles := load_shakespeare(directory))
        sizes = {name: len(role) for name, role in roles.items()}
    fitting = [name for name, size in sizes.items() if _SMALLEST <= size <= _LARGEST]
    wanted = min(_ROLES, len(fitting)) if workers is None else workers
    bounds = f"{_SMALLEST} to {_LARGEST} samples"
    if directory is None:
        requirement = f"be <= {len(fitting)}, the roles with {bounds}"
        check(wanted <= len(fitting), "workers", requirement, wanted)
    problem = f"expected {max(wanted, 1)} roles with {bounds}, found {len(fitting)}"
    require(0 < len(fitting) >= wanted, directory, problem)
    names = set(fitting[:wanted])
    held = {n: Examples(r.inputs.long(), r.labels) for n, r in train.items() if n in names}
    tests = [test[name] for name in held if name in test]
    origin = directory or "embedded"
    require(any(map(len, tests)), origin, "the chosen roles have no test samples")
    labels = torch.cat([role.labels for role in tests])
    tested = Examples(torch.cat([role.inputs for role in tests]).long(), labels)
    return Task("shakespeare", Devices.of(held), tested, lambda seed: CharLSTM(seed=seed))
