"""Cryptography of a secure sum: the package `cryptography`, and Shamir's secret sharing.

| for | taken |
| --- | --- |
| a secret of two members | X25519 (RFC 7748), refusing the all-zero result |
| keys from secrets | HKDF with SHA-256 (RFC 5869), salted with the round's context |
| masks, coefficients | the key stream of AES-256 in counter mode |
| shares and seeds on their way | AES-256-GCM |
| signatures | Ed25519 (RFC 8032) |

Secret sharing is the only algorithm written here. A secret of 32 bytes, as a number below `2**256`,
is the value at 0 of a polynomial of degree `threshold - 1` whose other coefficients are random; a
share is its value at a member's point. `threshold` shares give the polynomial, and fewer say
nothing about the secret (Shamir 1979). The prime is the smallest above `2**256`. Python's whole
numbers do not take the same time for all values: an attacker who can time these computations at a
member is out of scope.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

from diffsketch.errors import check
from diffsketch.wire import WireError

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
        'a secure sum needs the extra secure: python -m pip install ".[secure]" in the clone',
        name=error.name,
    ) from error

SECRET_BYTES = 32
PUBLIC_BYTES = 32  # of a public key, X25519 or Ed25519
SIGNATURE_BYTES = 64
TAG_BYTES = 16
NONCE_BYTES = 12
SHARE_BYTES = 33
COEFFICIENT_BYTES = 64  # reduced modulo the prime, these are 2**-255 from uniform
PRIME = 2**256 + 297
_NONCE = bytes(NONCE_BYTES)  # constant, as each key encrypts one message


class RefusedError(WireError):
    """A message is refused. Its one line says why; nothing was changed and nothing is sent."""


class KeyPair:
    """X25519 key of one member in one round."""

    def __init__(self, secret: bytes) -> None:
        check(len(secret) == SECRET_BYTES, "secret", "have 32 bytes", len(secret))
        self.secret = secret
        self._key = X25519PrivateKey.from_private_bytes(secret)
        self.public = self._key.public_key().public_bytes_raw()

    def agree(self, public: bytes) -> bytes:
        """Compute the secret that only the two owners can compute; to be given to `derive`."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise RefusedError("a public key is refused: it has no secret") from error


class SigningIdentity:
    """Long-term Ed25519 key of a member; the others know its public half, not from the server.

    >>> identity = SigningIdentity(bytes(32))
    >>> verify(identity.public, identity.sign(b"data"), b"data")
    """

    def __init__(self, secret: bytes) -> None:
        check(len(secret) == SECRET_BYTES, "secret", "have 32 bytes", len(secret))
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = self._key.public_key().public_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        """Sign: 64 bytes, the same for the same data."""
        return self._key.sign(data)


def verify(public: bytes, signature: bytes, data: bytes) -> None:
    """Raise a `RefusedError` unless the signature of the data is by this key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError) as error:
        raise RefusedError("a signature does not fit") from error


def derive(secret: bytes, *, context: bytes, label: str, about: bytes = b"") -> bytes:
    """Derive 32 bytes for one purpose: another label, context or `about` gives unrelated ones.

    For each label, `about` must have a fixed length.
    """
    name = label.encode()
    info = b"diffsketch secure sum 1" + bytes([len(name)]) + name + about
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=context, info=info).derive(secret)


def stream(key: bytes, size: int) -> bytes:
    """Pseudo-random bytes: AES-256 in counter mode from 0. Each key is for one stream."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def encrypt(key: bytes, plaintext: bytes, bound: bytes, *, nonce: bytes = _NONCE) -> bytes:
    """Encrypt, followed by a tag that also covers `bound`.

    With the constant nonce, a key must encrypt a single message: those of shares come from both
    public keys, the direction and the round.
    """
    return AESGCM(key).encrypt(nonce, plaintext, bound)


def decrypt(key: bytes, ciphertext: bytes, bound: bytes, *, nonce: bytes = _NONCE) -> bytes:
    """Decrypt; raise a `RefusedError` if it was altered or is not for this key."""
    try:
        return AESGCM(key).decrypt(nonce, ciphertext, bound)
    except InvalidTag as error:
        raise RefusedError("what is encrypted was altered, or is of another round") from error


def split(secret: bytes, points: Sequence[int], *, threshold: int, random: bytes) -> list[bytes]:
    """Compute the shares of a secret at the points, which must be distinct and not 0.

    `random` has `threshold - 1` times `COEFFICIENT_BYTES` secret random bytes.
    """
    check(len(secret) == SECRET_BYTES, "secret", "have 32 bytes", len(secret))
    wanted = (threshold - 1) * COEFFICIENT_BYTES
    check(len(random) == wanted, "random", f"have {wanted} bytes", len(random))
    _check_points(points, threshold)
    starts = range(0, wanted, COEFFICIENT_BYTES)
    higher = [int.from_bytes(random[at : at + COEFFICIENT_BYTES], "little") for at in starts]
    coefficients = [*reversed(higher), int.from_bytes(secret, "little")]
    shares = []
    for point in points:
        value = 0
        for coefficient in coefficients:
            value = (value * point + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES, "little"))
    return shares


def share_number(share: bytes) -> int:
    """Convert a share to a number; raise a `RefusedError` if it is not below the prime."""
    value = int.from_bytes(share, "little")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise RefusedError("a share is not a number of the field")
    return value


def weights_at_zero(points: Sequence[int]) -> list[int]:
    """Compute the weights by which shares at these points add up to their secret.

    They are those of Lagrange's polynomial through all of the points, at 0. It is the secret's for
    as many points as its threshold or more, if no share is wrong: whoever recovers a secret has to
    compare it with what its owner has promised.

    Guarantees (`tests/secure_sum/test_primitives.py`): the secret comes back from any shares, as
    many as the threshold or more, and does not with a wrong one among them.
    """
    _check_points(points, 1)
    weights = []
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above, below = above * other % PRIME, below * (other - point) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights


def recover(weights: Sequence[int], shares: Sequence[bytes]) -> bytes:
    """Recover a secret from shares, with the weights of their points."""
    value: int = sum(map(mul, weights, map(share_number, shares))) % PRIME
    if value >> (8 * SECRET_BYTES):
        raise RefusedError("shares give no secret of 32 bytes: somebody sent a wrong one")
    return value.to_bytes(SECRET_BYTES, "little")


def _check_points(points: Sequence[int], threshold: int) -> None:
    check(1 <= threshold <= len(points), "threshold", "be in 1..points", threshold)
    distinct = len(set(points)) == len(points) and all(0 < point < PRIME for point in points)
    check(distinct, "points", "be distinct and > 0", list(points))
