"""All cryptography, from the package `cryptography`: nothing here is an algorithm of ours.

| for | taken |
| --- | --- |
| a secret of two members | X25519 (RFC 7748), refusing the all-zero result |
| keys from secrets | HKDF with SHA-256 (RFC 5869), salted with the round's context |
| masks, coefficients | the key stream of AES-256 in counter mode |
| shares on their way | AES-256-GCM, one message for each key |
| who says so | Ed25519 (RFC 8032) |
"""

from __future__ import annotations

import secrets

from diffsketch.errors import check
from diffsketch.secure_sum.errors import RefusedError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "a secure sum needs the package cryptography: install diffsketch[secure]"
    ) from error

__all__ = ["TAG_BYTES", "Identity", "KeyPair", "decrypt", "derive", "encrypt", "stream", "verify"]

SECRET_BYTES = 32
TAG_BYTES = 16
_NONCE = bytes(12)


class KeyPair:
    """An X25519 key of one round."""

    def __init__(self, secret: bytes) -> None:
        check(len(secret) == SECRET_BYTES, "secret", "have 32 bytes", len(secret))
        self.secret = secret
        self._key = X25519PrivateKey.from_private_bytes(secret)
        self.public = self._key.public_key().public_bytes_raw()

    def agree(self, public: bytes) -> bytes:
        """The secret that only the two owners can compute; to be given to `derive`.

        Raises:
            RefusedError: The public key is one with which everybody knows the result.
        """
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise RefusedError("a public key is refused: it has no secret") from error


class Identity:
    """A member's lasting Ed25519 key, whose public half the others know from somewhere else.

    >>> identity = Identity(bytes(32))
    >>> verify(identity.public, identity.sign(b"data"), b"data")
    """

    def __init__(self, secret: bytes) -> None:
        check(len(secret) == SECRET_BYTES, "secret", "have 32 bytes", len(secret))
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = self._key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> Identity:
        """A new one, from the operating system's randomness."""
        return cls(secrets.token_bytes(SECRET_BYTES))

    def sign(self, data: bytes) -> bytes:
        """64 bytes; the same for the same data."""
        return self._key.sign(data)


def verify(public: bytes, signature: bytes, data: bytes) -> None:
    """Refuse a signature that is not this key's of the data.

    Raises:
        RefusedError: It is not.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError) as error:
        raise RefusedError("a signature does not fit") from error


def derive(secret: bytes, *, context: bytes, label: str, about: bytes = b"") -> bytes:
    """32 bytes for one purpose: another label, context or `about` gives unrelated ones.

    Args:
        secret: What is not known to others.
        context: Of the round.
        label: What the key is for.
        about: Of a fixed length for each label.
    """
    name = label.encode()
    info = b"diffsketch secure sum 1" + bytes([len(name)]) + name + about
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=context, info=info).derive(secret)


def stream(key: bytes, size: int) -> bytes:
    """Pseudo-random bytes: AES-256 in counter mode from 0. Each key is for one stream."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def encrypt(key: bytes, plaintext: bytes, bound: bytes) -> bytes:
    """The plaintext, unreadable and followed by a tag that also covers `bound`.

    The nonce is constant, so a key must encrypt a single message: ours come from both public keys,
    the direction and the round.
    """
    return AESGCM(key).encrypt(_NONCE, plaintext, bound)


def decrypt(key: bytes, ciphertext: bytes, bound: bytes) -> bytes:
    """What was encrypted.

    Raises:
        RefusedError: Somebody altered it, or it is not for this key.
    """
    try:
        return AESGCM(key).decrypt(_NONCE, ciphertext, bound)
    except InvalidTag as error:
        raise RefusedError("an encrypted share was altered, or is of another round") from error
