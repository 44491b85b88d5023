"""The package's algorithms are the ones meant: published vectors, and HKDF by hand."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from diffsketch.errors import ArgumentError
from diffsketch.secure_sum import Identity
from diffsketch.secure_sum.errors import RefusedError
from diffsketch.secure_sum.primitives import KeyPair, decrypt, derive, encrypt, stream, verify


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
    identity = Identity(bytes.fromhex(private))
    assert identity.public.hex() == public
    assert identity.sign(b"").hex() == signature
    verify(identity.public, bytes.fromhex(signature), b"")
    for data, key in ((b"x", identity.public), (b"", Identity(bytes(32)).public), (b"", b"short")):
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


def test_sizes_are_checked() -> None:
    for make in (KeyPair, Identity):
        with pytest.raises(ArgumentError, match="secret must have 32 bytes"):
            make(bytes(31))


def test_generated_identities_differ() -> None:
    assert Identity.generate().public != Identity.generate().public
