"""Shakespeare by role: the alphabet, the windows, selecting and dividing, the embedded plays."""

from __future__ import annotations

import lzma
import statistics
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError, DataError
from diffsketch.training.data import (
    LETTERS,
    RoleSamples,
    RoleText,
    encode_text,
    load_role_texts,
    load_shakespeare,
    role_samples,
    select_roles,
    split_roles,
)

SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

texts = st.text(st.sampled_from(LETTERS), max_size=60)


def decode(codes: torch.Tensor) -> str:
    return "".join(LETTERS[code] for code in codes.tolist())


def embedded_text() -> str:
    file = files("diffsketch.training.data") / "files" / "tinyshakespeare.txt.xz"
    return lzma.decompress(file.read_bytes()).decode("ascii")


# The alphabet and the windows.


def test_letters_are_eighty_and_distinct() -> None:
    assert len(LETTERS) == len(set(LETTERS)) == 80


@SETTINGS
@given(text=texts)
def test_encoding_round_trip(text: str) -> None:
    codes = encode_text(text)
    assert codes.dtype == torch.uint8
    assert decode(codes) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sha$l", r"'\$' \(first at character 3\)"),
        ("né\u2019", "'\\\\xe9', '\\\\u2019'"),
        ("\0", "x00"),
    ],
)
def test_unknown_character_is_named(text: str, shown: str) -> None:
    with pytest.raises(DataError, match=f"^role 'ROMEO': .*{shown}"):
        role_samples(RoleText("ROMEO", text))


@SETTINGS
@given(text=texts, window=st.integers(1, 20), stride=st.integers(1, 25))
def test_windows_follow_the_text(text: str, window: int, stride: int) -> None:
    samples = role_samples(RoleText("A", text), window=window, stride=stride)
    starts = range(0, max(0, len(text) - window), stride)
    assert samples.inputs.shape == (len(starts), window)
    assert [decode(row) for row in samples.inputs] == [text[i : i + window] for i in starts]
    assert decode(samples.labels) == "".join(text[i + window] for i in starts)


@SETTINGS
@given(
    length=st.integers(0, 300),
    window=st.integers(1, 20),
    stride=st.integers(1, 25),
    fraction=st.floats(0.01, 0.99),
)
def test_split_shares_no_text(length: int, window: int, stride: int, fraction: float) -> None:
    # Sample i covers the characters from i * stride to i * stride + window, its label included.
    role = role_samples(RoleText("A", "a" * length), window=window, stride=stride)
    numbers = torch.arange(len(role)) * stride
    marked = RoleSamples("A", role.inputs, numbers)
    (train,), (test,) = split_roles([marked], train_fraction=fraction, stride=stride)
    assert train.labels.tolist() == numbers[: int(fraction * len(role))].tolist()
    assert test.labels.tolist() == numbers[len(numbers) - len(test) :].tolist()
    if len(train) and len(test):
        last = int(train.labels[-1]) + window
        assert last < int(test.labels[0])
        assert int(test.labels[0]) - stride <= last, "a test sample was left out needlessly"


def test_arguments_out_of_range_are_refused() -> None:
    role = role_samples(RoleText("A", "a" * 100))
    calls: list[tuple[str, Callable[[], object]]] = [
        ("window", lambda: role_samples(RoleText("A", ""), window=0)),
        ("stride", lambda: role_samples(RoleText("A", ""), stride=0)),
        ("minimum", lambda: select_roles([role], minimum=-1)),
        ("maximum", lambda: select_roles([role], minimum=9, maximum=8)),
        ("count", lambda: select_roles([role], minimum=0, count=0)),
        (
            "count must be <= 1, the roles with 20",
            lambda: select_roles([role], minimum=20, count=2),
        ),
        ("train_fraction", lambda: split_roles([role], train_fraction=float("nan"))),
        ("stride", lambda: split_roles([role], stride=0)),
        ("inputs.dtype", lambda: RoleSamples("A", role.inputs.long(), role.labels)),
        ("inputs.ndim", lambda: RoleSamples("A", role.inputs[0], role.labels)),
        ("labels.dtype", lambda: RoleSamples("A", role.inputs, role.labels.int())),
        ("labels.shape", lambda: RoleSamples("A", role.inputs, role.labels[1:])),
        ("split", lambda: load_shakespeare(split="valid")),  # type: ignore[arg-type]
    ]
    for message, call in calls:
        with pytest.raises(ArgumentError, match=f"^{message}"):
            call()


# The embedded plays.


def test_selection_gives_the_known_role_sizes() -> None:
    roles = load_shakespeare()
    assert len(roles) == 299
    sizes = [len(role) for role in select_roles(roles)]
    assert len(sizes) == 46
    assert sum(sizes) == 34_204
    assert round(statistics.mean(sizes), 1) == 743.6
    assert round(statistics.stdev(sizes), 1) == 549.6
    # Negative control: a window one character longer is another data set.
    other = [role_samples(role, window=81) for role in load_role_texts()]
    assert round(statistics.mean(len(role) for role in select_roles(other)), 1) != 743.6


def test_no_speech_is_lost() -> None:
    text = embedded_text()
    assert text.count("$") == text.count("sha$l") == 1
    roles = load_role_texts()
    assert [role.name for role in roles[:3]] == ["First Citizen", "All", "Second Citizen"]
    # Every character of the source is in a role's text, a heading or a gap between speeches.
    spoken = "".join(line for role in roles for line in role.text.split("\n"))
    headings = [block.strip("\n").split("\n")[0] for block in text.split("\n\n")]
    assert all(heading.endswith(":") for heading in headings)
    letters = sum(map(len, text.split("\n")))
    assert len(spoken) + sum(map(len, headings)) == letters


def test_embedded_split_is_that_of_split_roles() -> None:
    train, test = split_roles(load_shakespeare())
    for split, expected in (("train", train), ("test", test)):
        roles = load_shakespeare(split=split)  # type: ignore[arg-type]
        assert [role.name for role in roles] == [role.name for role in expected]
        assert [len(role) for role in roles] == [len(role) for role in expected]
        assert all(torch.equal(a.labels, b.labels) for a, b in zip(roles, expected, strict=True))
    assert sum(map(len, test)) > 100_000


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda text: lzma.compress(text.replace("First", "Furst", 1).encode()),
            "checksum failure",
        ),
        (lambda text: lzma.compress(text.encode())[:-40], "damaged or unreadable"),
        (lambda _: b"", "checksum failure|damaged or unreadable"),
    ],
)
def test_damaged_embedded_text_is_found(
    damage: Callable[[str], bytes],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "tinyshakespeare.txt.xz"
    path.write_bytes(damage(embedded_text()))
    monkeypatch.setattr("diffsketch.training.data.shakespeare.embedded_file", lambda _: path)
    with pytest.raises(DataError, match=message):
        load_role_texts()
