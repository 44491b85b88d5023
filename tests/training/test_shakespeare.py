"""Shakespeare by role: the alphabet, windows, selecting, dividing, the plays, LEAF's JSON."""

from __future__ import annotations

import json
import lzma
import statistics
import tempfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diffsketch.errors import DataError
from diffsketch.training.data.shakespeare import (
    LETTERS,
    encode_text,
    load_role_texts,
    load_shakespeare,
    role_samples,
    split_roles,
)
from diffsketch.training.tasks import Examples, load_task
from tests.helpers.refusals import refused

SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

texts = st.text(st.sampled_from(LETTERS), max_size=60)


def decode(codes: torch.Tensor) -> str:
    return "".join(LETTERS[code] for code in codes.tolist())


def embedded_text() -> str:
    file = files("diffsketch.training.data") / "files" / "tinyshakespeare.txt.xz"
    return lzma.decompress(file.read_bytes()).decode("ascii")


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
    refused(DataError, f"^role 'ROMEO': .*{shown}", role_samples, "ROMEO", text)


@SETTINGS
@given(text=st.text(st.sampled_from(LETTERS), max_size=100))
def test_windows_follow_the_text(text: str) -> None:
    samples = role_samples("A", text)
    starts = range(max(0, len(text) - 80))
    assert samples.inputs.shape == (len(starts), 80)
    assert [decode(row) for row in samples.inputs] == [text[i : i + 80] for i in starts]
    assert decode(samples.labels) == "".join(text[i + 80] for i in starts)


@pytest.mark.parametrize("length", [0, 81, 150, 480, 481, 482, 483, 484, 1000])
def test_split_shares_no_text(length: int) -> None:
    # Sample i covers the characters from i to i + 80, its label included.
    role = role_samples("A", "a" * length)
    numbers = torch.arange(len(role))
    train, test = (part["A"] for part in split_roles({"A": Examples(role.inputs, numbers)}))
    assert train.labels.tolist() == numbers[: int(0.8 * len(role))].tolist()
    assert test.labels.tolist() == numbers[len(numbers) - len(test) :].tolist()
    if len(train) and len(test):
        assert int(train.labels[-1]) + 81 == int(test.labels[0])  # and none is left out needlessly
    assert (len(test) > 0) == (len(role) - len(train) > 80)


def test_selection_gives_the_known_role_sizes() -> None:
    roles, names = load_shakespeare(), load_task("shakespeare").devices.names
    assert (len(roles), len(names)) == (299, 46)
    sizes = [len(roles[name]) for name in names]
    assert sum(sizes) == 34_204
    assert round(statistics.mean(sizes), 1) == 743.6
    assert round(statistics.stdev(sizes), 1) == 549.6


def test_no_speech_is_lost() -> None:
    text = embedded_text()
    assert text.count("$") == text.count("sha$l") == 1
    roles = load_role_texts()
    assert list(roles)[:3] == ["First Citizen", "All", "Second Citizen"]
    # Every character of the source is in a role's text, a heading or a gap between speeches.
    spoken = "".join(line for said in roles.values() for line in said.split("\n"))
    headings = [block.strip("\n").split("\n")[0] for block in text.split("\n\n")]
    assert all(heading.endswith(":") for heading in headings)
    letters = sum(map(len, text.split("\n")))
    assert len(spoken) + sum(map(len, headings)) == letters


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda text: lzma.compress(text.replace("First", "Furst", 1).encode(), preset=0),
            "checksum failure",
        ),
        (lambda text: lzma.compress(text.encode(), preset=0)[:-40], "damaged or unreadable"),
        (lambda _: b"", "checksum failure|damaged or unreadable"),
    ],
)
def test_damaged_embedded_text_is_found(
    damage: Callable[[str], bytes], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tinyshakespeare.txt.xz"
    path.write_bytes(damage(embedded_text()))
    monkeypatch.setattr("diffsketch.training.data.shakespeare.embedded_file", lambda _: path)
    refused(DataError, message, load_role_texts)


def leaf_record(text: str) -> dict[str, Any]:
    starts = range(len(text) - 80)
    return {"x": [text[i : i + 80] for i in starts], "y": [text[i + 80] for i in starts]}


def leaf_content() -> dict[str, Any]:
    """What LEAF writes, with an entry that `users` does not name, as its division leaves them."""
    return {
        "users": ["ROMEO", "JULIET"],
        "num_samples": [3, 240],
        "hierarchies": ["play", "play"],
        "user_data": {
            "JULIET": leaf_record("O Romeo, Romeo! " * 20),
            "DROPPED": {"x": [], "y": []},
            "ROMEO": leaf_record(
                "She speaks: O, speak again, bright angel! for thou art".ljust(83, ".")
            ),
        },
    }


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("place", ["all_data/all_data.json", "mine.json"])
def test_leaf_samples_are_taken_as_they_are(tmp_path: Path, place: str) -> None:
    content = leaf_content()
    write_json(tmp_path / place, content)
    roles = load_shakespeare(str(tmp_path))
    assert list(roles) == ["ROMEO", "JULIET"]
    for name, role in roles.items():
        assert [decode(row) for row in role.inputs] == content["user_data"][name]["x"]
        assert decode(role.labels) == "".join(content["user_data"][name]["y"])


def test_missing_leaf_files_are_named(tmp_path: Path) -> None:
    refused(DataError, r"no \*\.json in .*all_data or ", load_shakespeare, tmp_path)
    refused(DataError, "nowhere: expected a directory", load_shakespeare, tmp_path / "nowhere")


def _edit(**changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update(changes)


def _edit_romeo(**changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["user_data"]["ROMEO"].update(changes)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda content: content.pop("users"), "expected the key 'users'"),
        (lambda content: content.pop("num_samples"), "expected the key 'num_samples'"),
        (lambda content: content.pop("user_data"), "expected the key 'user_data'"),
        (_edit(users="ROMEO"), "expected 'users' to be a list, found str"),
        (_edit(users=[3, "JULIET"]), "expected users to be names, found int"),
        (_edit(users=["ROMEO", "ROMEO"]), "user 'ROMEO': expected each user once"),
        (_edit(users=["ROMEO", "NURSE"]), "user_data: expected the key 'NURSE'"),
        (_edit(num_samples=[3]), "num_samples for each of 2 users, found 1"),
        (_edit(num_samples=[4, 240]), "user 'ROMEO': num_samples says 4, found 3 samples"),
        (_edit(num_samples=[[3], 240]), "user 'ROMEO': num_samples says list, found 3"),
        (_edit(users=[], num_samples=[]), "expected at least one user"),
        (_edit(user_data={"ROMEO": 3}), "expected 'ROMEO' to be a dict, found int"),
        (lambda content: content["user_data"]["ROMEO"].pop("y"), "'ROMEO': expected the key 'y'"),
        (_edit_romeo(x=None), "user 'ROMEO': expected 'x' to be a list, found NoneType"),
        (_edit_romeo(y=["a", "b"]), "user 'ROMEO': expected as many y as x, found 3 x and 2 y"),
        (_edit_romeo(x=["a" * 80, "b" * 79]), r"'ROMEO': expected x\[1\] .*length 80, found 79"),
        (_edit_romeo(y=["a", "b", 3]), r"'ROMEO': expected y\[2\] .*length 1, found int"),
        (_edit_romeo(y=["a", "é", "b"]), r"user 'ROMEO': y: .*'\\xe9' \(first at character 1\)"),
        (_edit_romeo(x=["\ud800" * 80] * 3), r"user 'ROMEO': x: .*'\\ud800'"),
    ],
)
def test_malformed_leaf_is_named(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    content = leaf_content()
    edit(content)
    write_json(tmp_path / "data.json", content)
    with pytest.raises(DataError, match=message) as caught:
        load_shakespeare(tmp_path)
    assert str(tmp_path / "data.json") in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe\xfa", b"null", b"[" * 100_000, b"9" * 10_000]
)
def test_files_that_are_not_leaf(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.json").write_bytes(content)
    with pytest.raises(DataError, match=r"data\.json: (not readable as JSON|expected a JSON obj)"):
        load_shakespeare(tmp_path)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["A", "a" * 80]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["A", "x", "y"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@SETTINGS
@given(
    content=values
    | st.fixed_dictionaries(
        {
            "users": values | st.just(["A"]),
            "num_samples": values | st.just([1]),
            "user_data": values
            | st.fixed_dictionaries({"A": st.fixed_dictionaries({"x": values, "y": values})}),
        }
    )
)
def test_arbitrary_json_never_crashes(content: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_json(Path(folder) / "data.json", content)
        try:
            roles = load_shakespeare(folder)
        except DataError:
            return
    assert all(role.inputs.shape == (len(role), 80) for role in roles.values())
