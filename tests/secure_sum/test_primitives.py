"""Published vectors for the cryptography; secrets come back from enough shares."""

from __future__ import annotations

import hashlib
import hmac
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
    ShareRecovery,
    decrypt,
    derive,
    encrypt,
    split,
    stream,
    verify,
)


def test_x25519_of_rfc_7748() -> None:
    """Bob's side of section 6.1."""
    private = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
    public = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    alice = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    bob = KeyPair(bytes.fromhex(private))
    assert bob.public.hex() == public
    assert bob.agree(bytes.fromhex(alice)).hex() == shared


@pytest.mark.parametrize("public", [bytes(32), bytes([1]) + bytes(31), bytes(31)])
def test_keys_without_a_secret_are_refused(public: bytes) -> None:
    with pytest.raises(RefusedError, match="no secret"):
        KeyPair(bytes(32)).agree(public)


def test_ed25519_of_rfc_8032() -> None:
    """Test 1 of section 7.1."""
    private = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
    public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    signature = (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b"
        "46bd25bf5f0595bbe24655141438e7a100b"
    )
    identity = SigningIdentity(bytes.fromhex(private))
    assert identity.public.hex() == public
    assert identity.sign(b"").hex() == signature
    verify(identity.public, bytes.fromhex(signature), b"")
    for data, key in (
        (b"x", identity.public),
        (b"", SigningIdentity(bytes(32)).public),
        (b"", b"short"),
    ):
        with pytest.raises(RefusedError, match="does not fit"):
            verify(key, bytes.fromhex(signature), data)


def test_hkdf_by_hand() -> None:
    """RFC 5869: extract with the salt, then one block of expansion."""
    secret, context = b"s" * 32, b"c" * 32
    extracted = hmac.digest(context, secret, "sha256")
    info = b"diffsketch secure sum 1" + b"\x05label" + b"about"
    expected = hmac.digest(extracted, info + b"\x01", "sha256")
    assert derive(secret, context=context, label="label", about=b"about") == expected
    others = [
        derive(b"t" * 32, context=context, label="label", about=b"about"),
        derive(secret, context=b"d" * 32, label="label", about=b"about"),
        derive(secret, context=context, label="labela", about=b"bout"),
        derive(secret, context=context, label="label", about=b"abouu"),
    ]
    assert len({expected, *others}) == 5


def test_stream_is_aes_256_in_counter_mode() -> None:
    """The first block is AES-256 of zeros under a key of zeros, whose value is published."""
    assert stream(bytes(32), 16).hex() == "dc95c078a2408989ad48a21492842087"
    assert stream(bytes(32), 5) == stream(bytes(32), 100)[:5]
    assert len(stream(hashlib.sha256(b"").digest(), 100)) == 100


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
        with pytest.raises(RefusedError, match="altered"):
            decrypt(key, data, bound)


def test_identities_and_key_pairs() -> None:
    for make in (KeyPair, SigningIdentity):
        with pytest.raises(ArgumentError, match="secret must have 32 bytes"):
            make(bytes(31))
    assert SigningIdentity.generate().public != SigningIdentity.generate().public


SECRET = bytes(range(32))


def shares_of(secret: bytes, points: list[int], threshold: int, seed: int = 0) -> dict[int, bytes]:
    coefficients = random.Random(seed).randbytes((threshold - 1) * COEFFICIENT_BYTES)
    made = split(secret, points, threshold=threshold, random=coefficients)
    return dict(zip(points, made, strict=True))


def recover(shares: dict[int, bytes], threshold: int) -> bytes:
    return ShareRecovery(list(shares), threshold=threshold, unforeseen=12345).secret(shares)


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
    assert recover({point: shares[point] for point in some}, threshold) == secret


def test_shares_known_answer() -> None:
    """`s + 5 x + 3 x**2` at 1, 2 and 3."""
    coefficients = (5).to_bytes(64, "little") + (3).to_bytes(64, "little")
    secret = (2**256 - 1).to_bytes(32, "little")
    made = split(secret, [1, 2, 3], threshold=3, random=coefficients)
    expected = [(2**256 - 1 + 5 * x + 3 * x * x) % PRIME for x in (1, 2, 3)]
    assert [int.from_bytes(share, "little") for share in made] == expected
    assert {len(share) for share in made} == {SHARE_BYTES}


def test_too_few_shares_fit_every_secret() -> None:
    """Any other secret is explained by the same shares: they do not tell."""
    shares = shares_of(SECRET, [1, 2, 3, 4], threshold=3)
    two = {point: int.from_bytes(shares[point], "little") for point in (2, 4)}
    for guess in (0, 1, 2**255 + 17):
        # The parabola through the guess at 0 and the two shares, by Newton's differences.
        first = (two[2] - guess) * pow(2, -1, PRIME) % PRIME
        second = ((two[4] - two[2]) * pow(2, -1, PRIME) - first) * pow(4, -1, PRIME) % PRIME
        assert (guess + first * 4 + second * 4 * 2) % PRIME == two[4]


@pytest.mark.parametrize("count", [4, 5, 9])
@pytest.mark.parametrize("which", [1, 3])
def test_a_wrong_share_is_found(count: int, which: int) -> None:
    shares = shares_of(SECRET, list(range(1, count + 1)), threshold=3)
    assert recover(shares, 3) == SECRET
    number = (int.from_bytes(shares[which], "little") + 1) % PRIME
    shares[which] = number.to_bytes(SHARE_BYTES, "little")
    with pytest.raises(RefusedError, match="do not belong to one secret"):
        recover(shares, 3)


def test_shares_of_two_secrets_are_found() -> None:
    one, other = (shares_of(SECRET, [1, 2, 3, 4, 5], 3, seed) for seed in (1, 2))
    with pytest.raises(RefusedError, match="do not belong"):
        recover(dict(list(one.items())[:3] + list(other.items())[3:]), 3)


def test_shares_out_of_range() -> None:
    shares = shares_of(SECRET, [1, 2], threshold=2)
    shares[1] = PRIME.to_bytes(SHARE_BYTES, "little")
    with pytest.raises(RefusedError, match="not a number of the field"):
        recover(shares, 2)
    share = (2**256).to_bytes(SHARE_BYTES, "little")
    with pytest.raises(RefusedError, match="no secret of 32 bytes"):
        recover({1: share, 2: share}, 2)


@pytest.mark.parametrize("points", [[1, 1, 2], [0, 1, 2], [1]])
def test_points_are_checked(points: list[int]) -> None:
    with pytest.raises(ArgumentError, match=r"points|threshold"):
        split(SECRET, points, threshold=2, random=bytes(COEFFICIENT_BYTES))
    with pytest.raises(ArgumentError, match=r"points|threshold"):
        ShareRecovery(points, threshold=2, unforeseen=1)


def test_sizes_of_shares_are_checked() -> None:
    with pytest.raises(ArgumentError, match="secret must have 32 bytes"):
        split(bytes(31), [1, 2], threshold=2, random=bytes(COEFFICIENT_BYTES))
    with pytest.raises(ArgumentError, match="random must have 64 bytes"):
        split(SECRET, [1, 2], threshold=2, random=bytes(COEFFICIENT_BYTES - 1))
