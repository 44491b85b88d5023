"""The bytes of a round with fixed secrets: they stay what they are in version 2.

The masked input is also computed a second time, from the description alone and without any of our
code but the format of messages.
"""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from diffsketch.secure_sum import Client, Params, Server, Stage
from diffsketch.wire import Message, MessageFormat
from tests.secure_sum.playing import Played, identity

LAYOUT = MessageFormat("sketch-skellam", 9, (1, 5), "unsigned", 20, code=8)
ROOTS = {index: bytes([index]) * 32 for index in (1, 2, 3)}


def make(*, signed: bool) -> Played:
    params = Params(
        LAYOUT,
        run=b"known answers...",
        round_index=3,
        fingerprint=bytes(range(8)),
        members=(1, 2, 3),
        threshold=2,
        min_present=2,
        identities={i: identity(i).public for i in ROOTS} if signed else None,
    )
    clients = {
        index: Client(
            index,
            params,
            identity=identity(index) if signed else None,
            randomness=lambda size, root=root: root[:size],  # type: ignore[misc]
        )
        for index, root in ROOTS.items()
    }
    inputs = {index: torch.full((1, 5), 1000 * index) for index in ROOTS}
    return Played(Server(params), clients, inputs)


def digests(played: Played) -> dict[str, str]:
    return {
        stage.value: hashlib.sha256(b"".join(replies.values())).hexdigest()[:16]
        for stage, replies in played.replies.items()
    }


def test_messages_of_a_round() -> None:
    played = make(signed=False).until(Stage.DONE, {2: Stage.MASKED})
    assert played.server.params.context.hex() == CONTEXT
    assert played.replies[Stage.KEYS][1].hex() == KEYS
    assert played.replies[Stage.MASKED][1].hex() == MASKED
    assert digests(played) == PLAIN
    assert played.server.total().cells.tolist() == [[4000] * 5]


def test_messages_of_a_signed_round() -> None:
    played = make(signed=True).until(Stage.DONE, {2: Stage.MASKED})
    assert digests(played) == SIGNED
    assert played.server.total().present == (1, 3)


def hkdf(secret: bytes, context: bytes, label: bytes, about: bytes) -> bytes:
    info = b"diffsketch secure sum 1" + bytes([len(label)]) + label + about
    return hmac.digest(hmac.digest(context, secret, "sha256"), info + b"\x01", "sha256")


def words(key: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    data = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(20))
    return np.frombuffer(data, "<u4").astype(np.uint32)


@pytest.mark.parametrize("index", [1, 2, 3])
def test_masked_input_by_hand(index: int) -> None:
    played = make(signed=False).until(Stage.UNMASK)
    context = played.server.params.context
    number = {i: i.to_bytes(8, "little") for i in ROOTS}
    keys = {i: hkdf(ROOTS[i], context, b"own key", number[i]) for i in ROOTS}
    private = {i: X25519PrivateKey.from_private_bytes(key) for i, key in keys.items()}
    public = {i: key.public_key().public_bytes_raw() for i, key in private.items()}
    seed = hkdf(ROOTS[index], context, b"own seed", number[index])
    promised = hkdf(seed, context, b"seed commitment", number[index])
    assert played.replies[Stage.KEYS][index][52 + 64 :] == promised
    expected = np.full(5, 1000 * index, np.uint32)
    expected += words(hkdf(seed, context, b"self mask", number[index]))
    for other in ROOTS:
        low, high = sorted((index, other))
        if low == high:
            continue
        shared = private[index].exchange(X25519PublicKey.from_public_bytes(public[other]))
        about = number[low] + public[low] + number[high] + public[high]
        mask = words(hkdf(shared, context, b"pair mask", about))
        expected += mask if index > other else -mask
    message = Message.from_bytes(
        played.replies[Stage.MASKED][index][52:],
        LAYOUT,
        round_index=3,
        fingerprint=bytes(range(8)),
    )
    assert message.cells.flatten().tolist() == (expected & 0xFFFFF).tolist()


CONTEXT = "5435dfdb6c8f158b9966ad5d0242b61fceb15ac8e3aebea5d72c2ac20e96b835"
KEYS = (
    "d553020101000000000000005435dfdb6c8f158b9966ad5d0242b61fceb15ac8"
    "e3aebea5d72c2ac20e96b835741230bf9ae6892b580c49536128b2295a9edcf4"
    "1d36323f722433461c1665f7a916639b83393f416ac3eef6d533c017f61d8567"
    "8c4b642b3f5ab48f6b0e3962b449b6cee2866b77625e5a1289434be6cc7bd21f"
    "908a8caf4ca8d554b183fc03b8ede068dbd6c627"
)
MASKED = (
    "d553020301000000000000005435dfdb6c8f158b9966ad5d0242b61fceb15ac8"
    "e3aebea5d72c2ac20e96b835dfc7ce3f6222bfd6d54b0108ca609a1809000000"
    "0000010005000000000001140300000001000000010000000000000000010203"
    "040506075bacd7b698ff68784f99ce9f0d"
)
PLAIN = {
    "keys": "72ceeea59d5e07e6",
    "shares": "4107a50d8f1d3627",
    "masked": "c822176c7e32e433",
    "unmask": "1d5ca426945b9b4a",
}
SIGNED = {
    "keys": "6ecc86ac82a161ef",
    "shares": "99448f991fb56641",
    "masked": "462b4f4ad4a83e18",
    "consistency": "647a8980142ed54f",
    "unmask": "3ef2e8599cf52fec",
}
