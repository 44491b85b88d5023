"""Keys of nodes and of the server, where their operators have put them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from diffsketch.errors import ArgumentError, DataError
from diffsketch.secure_sum import KeyPair, SigningIdentity
from diffsketch.sketch import SketchKey

MAKE_A_KEY = (
    "`diffsketch key sketch.key` makes one; then set DIFFSKETCH_KEY_FILE=/path/of/sketch.key for "
    "every SuperNode, and for the SuperLink if the server is to have the model"
)


def member_number(public: bytes) -> int:
    """A member's number in a secure sum, from its public key. Ids of nodes are the server's."""
    digest = hashlib.blake2b(public, digest_size=8, person=b"ds-flwr-sum").digest()
    return int.from_bytes(digest, "little") >> 1


def numbered(identities: Iterable[bytes]) -> dict[int, bytes]:
    """Public keys by their members' numbers."""
    return {member_number(public): public for public in identities}


@dataclass(frozen=True)
class NodeKeys:
    """Keys of a node; or of the server, which has no configuration of a node.

    Each is in a file that the node's configuration names (`diffsketch-key-file`, for one) or the
    environment (`DIFFSKETCH_KEY_FILE`), or in the environment itself (`DIFFSKETCH_KEY`), as 64
    hexadecimal digits; None if it is in none of them.

    Args:
        config: The node's configuration.
        run_id: The run that a client is in: a simulation on this machine may have lent it keys
            (`simulation_keys`).
    """

    config: Mapping[str, object] = field(default_factory=dict)
    run_id: int | None = None

    @property
    def sketch(self) -> SketchKey | None:
        """Key that all clients share (`KEY`): `diffsketch key` makes one."""
        secret = self._find("DIFFSKETCH_KEY") or self._lent(0)
        return SketchKey(secret) if secret else None

    @property
    def client(self) -> bytes | None:
        """The client's own key, for statements of its account (`CLIENT_KEY`)."""
        return self._find("DIFFSKETCH_CLIENT_KEY")

    @property
    def identity(self) -> SigningIdentity | None:
        """The client's identity in secure sums (`IDENTITY`)."""
        secret = self._find("DIFFSKETCH_IDENTITY")
        return SigningIdentity(secret) if secret else None

    @property
    def identities(self) -> dict[int, bytes] | None:
        """Public keys of all who may be members of secure sums: a file, one key in a line."""
        path = self._path("DIFFSKETCH_IDENTITIES")
        return numbered(_decoded(line, path) for line in _read(path).split()) if path else None

    @property
    def helper(self) -> bytes | None:
        """Public key of the helper of two aggregators, which its operator hands out (`HELPER`)."""
        return self._find("DIFFSKETCH_HELPER") or self._lent(1)

    @property
    def helper_secret(self) -> KeyPair | None:
        """The helper's own key, which makes a node the helper (`HELPER_SECRET`)."""
        secret = self._find("DIFFSKETCH_HELPER_SECRET")
        return KeyPair(secret) if secret else None

    def _find(self, name: str) -> bytes | None:
        """Decode a key in a file, or else in the environment."""
        path = self._path(name)
        text = _read(path) if path else os.environ.get(name, "").strip()
        return _decoded(text, path or name) if path or text else None

    def _path(self, name: str) -> str:
        """Path that the configuration names, or else the environment; empty if neither does."""
        entry = name.lower().replace("_", "-") + "-file"
        return str(self.config.get(entry) or os.environ.get(f"{name}_FILE", ""))

    def _lent(self, place: int) -> bytes | None:
        """One of the keys that the simulation of this run has lent."""
        if self.run_id is None:
            return None
        path = _simulation_file(self.run_id)
        # Somebody else's file at this public place would be a key that somebody else knows.
        ours = path.exists() and (not hasattr(os, "getuid") or path.stat().st_uid == os.getuid())
        key = _read(path).split()[place] if ours else "-"
        return None if key == "-" else _decoded(key, str(path))


def find_sketch_key() -> SketchKey | None:
    """Find the key that all clients share, for a server that may have it: see `NodeKeys`."""
    return NodeKeys().sketch


@contextmanager
def simulation_keys(run_id: int, key: bytes | None, helper: bytes | None) -> Iterator[None]:
    """Lend keys to the clients of a simulation, by a file that only this user can read.

    The clients' common key, and the public key of the helper, if there is one.
    """
    path = _simulation_file(run_id)
    try:
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(" ".join(secret.hex() if secret else "-" for secret in (key, helper)))
    except OSError as error:
        raise DataError(f"the simulation's key cannot be written: {error}; {MAKE_A_KEY}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _simulation_file(run_id: int) -> Path:
    return Path(tempfile.gettempdir()) / f"diffsketch-simulation-{run_id}.key"


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the key file {path} must be readable text: {error}") from error


def _decoded(text: str, where: str) -> bytes:
    """Decode 32 bytes. The error never says what it found: it may be a key."""
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != 32:
        raise ArgumentError(f"{where} must have 64 hexadecimal digits")
    return secret
