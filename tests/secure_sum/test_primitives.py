"""Published vectors for the cryptography; secrets come back from enough shares."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError
from diffsketch.secure_sum import RefusedError, SigningIdentity
from diffsketch.secure_sum.primitives import (
    COEFFICIENT_BYTES,
    PRIME,
    SHARE_BYTES,
    KeyPair,
    decrypt,
    encrypt,
    recover,
    split,
    verify,
    weights_at_zero,
)
from tests.helpers.refusals import refused


@pytest.mark.parametrize("public", [bytes(32), bytes([1]) + bytes(31), bytes(31)])
def test_keys_without_a_secret_are_refused(public: bytes) -> None:
    refused(RefusedError, "no secret", KeyPair(bytes(32)).agree, public)


def test_signatures_are_of_one_key_and_text() -> None:
    """That they are Ed25519's, its library tests; bytes of a round have some of them."""
    identity = SigningIdentity(bytes(range(32)))
    signature = identity.sign(b"")
    verify(identity.public, signature, b"")
    other = SigningIdentity(bytes(32)).public
    for data, key in ((b"x", identity.public), (b"", other), (b"", b"short")):
        refused(RefusedError, "does not fit", verify, key, signature, data)


def test_encryption_is_aes_256_gcm() -> None:
    """Test cases 13 and 14 of its specification: keys, nonces and plaintexts of zeros."""
    assert encrypt(bytes(32), b"", b"").hex() == "530f8afbc74536b9a963b4f1c4cb738b"
    found = encrypt(bytes(32), bytes(16), b"").hex()
    assert found == "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"


def test_what_is_altered_is_not_decrypted() -> None:
    sealed = encrypt(bytes(32), b"plain", b"bound")
    assert decrypt(bytes(32), sealed, b"bound") == b"plain"
    for key, data, bound in (
        (bytes(31) + b"\x01", sealed, b"bound"),
        (bytes(32), sealed, b"bounD"),
        (bytes(32), sealed[:-1], b"bound"),
        (bytes(32), b"", b"bound"),
        *(
            (bytes(32), sealed[:k] + bytes([sealed[k] ^ 1]) + sealed[k + 1 :], b"bound")
            for k in range(21)
        ),
    ):
        refused(RefusedError, "altered", decrypt, key, data, bound)


def test_identities_and_key_pairs() -> None:
    for make in (KeyPair, SigningIdentity):
        refused(ArgumentError, "secret must have 32 bytes", make, bytes(31))


SECRET = bytes(range(32))


def shares_of(secret: bytes, points: list[int], threshold: int, seed: int = 0) -> dict[int, bytes]:
    coefficients = random.Random(seed).randbytes((threshold - 1) * COEFFICIENT_BYTES)
    made = split(secret, points, threshold=threshold, random=coefficients)
    return dict(zip(points, made, strict=True))


def recovered(shares: dict[int, bytes]) -> bytes:
    return recover(weights_at_zero(list(shares)), list(shares.values()))


def test_prime() -> None:
    """Fermat's test with 40 bases: a composite number passes with less than 2**-40."""
    bases = random.Random(0)
    assert PRIME > 2**256
    assert all(pow(bases.randrange(2, PRIME - 1), PRIME - 1, PRIME) == 1 for _ in range(40))
    assert pow(3, PRIME + 1, PRIME + 2) != 1  # the negative control


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.data())
def test_any_enough_shares_give_the_secret(secret: bytes, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    threshold = data.draw(st.integers(1, count))
    shares = shares_of(secret, list(range(1, count + 1)), threshold, data.draw(st.integers(0, 99)))
    some = data.draw(st.permutations(sorted(shares)))[: data.draw(st.integers(threshold, count))]
    assert recovered({point: shares[point] for point in some}) == secret


def test_shares_known_answer() -> None:
    """`s + 5 x + 3 x**2` at 1, 2 and 3."""
    coefficients = (5).to_bytes(64, "little") + (3).to_bytes(64, "little")
    secret = (2**256 - 1).to_bytes(32, "little")
    made = split(secret, [1, 2, 3], threshold=3, random=coefficients)
    expected = [(2**256 - 1 + 5 * x + 3 * x * x) % PRIME for x in (1, 2, 3)]
    assert [int.from_bytes(share, "little") for share in made] == expected
    assert {len(share) for share in made} == {SHARE_BYTES}


@pytest.mark.parametrize("count", [2, 3, 5])
def test_wrong_or_too_few_shares_do_not_give_the_secret(count: int) -> None:
    """They give another one, which does not fit what its owner has promised."""
    threshold = min(count, 3)
    shares = shares_of(SECRET, list(range(1, count + 1)), threshold)
    assert recovered(shares) == SECRET
    for point, share in shares.items():
        number = (int.from_bytes(share, "little") + 1) % PRIME
        assert recovered(shares | {point: number.to_bytes(SHARE_BYTES, "little")}) != SECRET
    assert recovered({point: shares[point] for point in list(shares)[: threshold - 1]}) != SECRET


def test_shares_out_of_range() -> None:
    shares = shares_of(SECRET, [1, 2], threshold=2)
    shares[1] = PRIME.to_bytes(SHARE_BYTES, "little")
    refused(RefusedError, "not a number of the field", recovered, shares)
    share = (2**256).to_bytes(SHARE_BYTES, "little")
    refused(RefusedError, "no secret of 32 bytes", recovered, {1: share, 2: share})


@pytest.mark.parametrize("points", [[1, 1, 2], [0, 1, 2], [1]])
def test_points_are_checked(points: list[int]) -> None:
    with pytest.raises(ArgumentError, match=r"points|threshold"):
        split(SECRET, points, threshold=2, random=bytes(COEFFICIENT_BYTES))
    if len(points) > 1:
        refused(ArgumentError, "points must be distinct", weights_at_zero, points)


def test_sizes_of_shares_are_checked() -> None:
    with pytest.raises(ArgumentError, match="secret must have 32 bytes"):
        split(bytes(31), [1, 2], threshold=2, random=bytes(COEFFICIENT_BYTES))
    with pytest.raises(ArgumentError, match="random must have 64 bytes"):
        split(SECRET, [1, 2], threshold=2, random=bytes(COEFFICIENT_BYTES - 1))
