"""Where a process finds its keys: an argument, the node's configuration, or the environment.

Keys are 64 hexadecimal digits, or a file of them. The run's configuration is no place for a key:
it passes through the server. Nor is it for the public keys of a secure sum's members, which the
server must not choose.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from diffsketch.errors import ArgumentError, DataError
from diffsketch.secure_sum import Identity
from diffsketch.sketch import SketchKey

__all__ = [
    "CLIENT_KEY",
    "IDENTITIES",
    "IDENTITY",
    "SKETCH_KEY",
    "find_client_key",
    "find_identities",
    "find_identity",
    "find_sketch_key",
]

SKETCH_KEY = "DIFFSKETCH_KEY"
"""Environment: the clients' common key, or with `_FILE` a file; `diffsketch-key-file` of a node."""

CLIENT_KEY = "DIFFSKETCH_CLIENT_KEY"
"""Environment: a client's own key, or with `_FILE`; `diffsketch-client-key-file` of a node."""

IDENTITY = "DIFFSKETCH_IDENTITY"
"""Environment: a client's own secret identity, or with `_FILE`; `diffsketch-identity-file`."""

IDENTITIES = "DIFFSKETCH_IDENTITIES"
"""Environment, with `_FILE`: all members' public keys, one in a line; `diffsketch-identities-file`.
"""

_BYTES = 32


def find_sketch_key(node_config: Mapping[str, object] | None = None) -> SketchKey | None:
    """The key that all clients share, if there is one."""
    secret = _find(SKETCH_KEY, "diffsketch-key-file", node_config)
    return None if secret is None else SketchKey(secret)


def find_client_key(node_config: Mapping[str, object] | None = None) -> bytes | None:
    """The client's own key, if there is one."""
    return _find(CLIENT_KEY, "diffsketch-client-key-file", node_config)


def find_identity(node_config: Mapping[str, object] | None = None) -> Identity | None:
    """The client's own identity for secure sums, if there is one."""
    secret = _find(IDENTITY, "diffsketch-identity-file", node_config)
    return None if secret is None else Identity(secret)


def find_identities(node_config: Mapping[str, object] | None = None) -> list[bytes] | None:
    """The public keys of all who may be members of secure sums, if they are there."""
    path = (node_config or {}).get("diffsketch-identities-file")
    path = path or os.environ.get(f"{IDENTITIES}_FILE")
    return [_decoded(line, str(path)) for line in _text(path).split()] if path else None


def _find(name: str, entry: str, node_config: Mapping[str, object] | None) -> bytes | None:
    path = (node_config or {}).get(entry) or os.environ.get(f"{name}_FILE")
    if path:
        return _decoded(_text(path), str(path))
    text = os.environ.get(name, "").strip()
    return _decoded(text, name) if text else None


def _text(path: object) -> str:
    try:
        return Path(str(path)).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the key file {path} must be readable text: {error}") from error


def _decoded(text: str, where: str) -> bytes:
    """Never says what it found: it may be a key."""
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != _BYTES:
        raise ArgumentError(f"{where} must have 64 hexadecimal digits")
    return secret
