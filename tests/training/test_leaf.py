"""LEAF's Shakespeare JSON in a user's directory, with every kind of mistake."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diffsketch.errors import DataError
from diffsketch.training.data import LETTERS, load_shakespeare

SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def decode(codes: torch.Tensor) -> str:
    return "".join(LETTERS[code] for code in codes.tolist())


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
    assert [role.name for role in roles] == ["ROMEO", "JULIET"]
    for role in roles:
        assert [decode(row) for row in role.inputs] == content["user_data"][role.name]["x"]
        assert decode(role.labels) == "".join(content["user_data"][role.name]["y"])
    # Without LEAF's division ours applies.
    assert [len(role) for role in load_shakespeare(tmp_path, split="train")] == [2, 192]
    assert [len(role) for role in load_shakespeare(tmp_path, split="test")] == [0, 0]


def test_leaf_division_is_used_where_there_is_one(tmp_path: Path) -> None:
    parts = {"train": ["a", "b"], "test": ["c"], "all_data": ["d"]}
    for folder, names in parts.items():
        for name in names:
            record = leaf_record(name * 85)
            write_json(
                tmp_path / folder / f"{name}.json",
                {"users": [name], "num_samples": [5], "user_data": {name: record}},
            )
    assert [role.name for role in load_shakespeare(tmp_path, split="train")] == ["a", "b"]
    assert [role.name for role in load_shakespeare(tmp_path, split="test")] == ["c"]
    assert [role.name for role in load_shakespeare(tmp_path)] == ["d"]
    # With half of the division gone, dividing the whole anew would mix the halves.
    (tmp_path / "test" / "c.json").unlink()
    with pytest.raises(DataError, match=r"no \*\.json in .*test: expected LEAF"):
        load_shakespeare(tmp_path, split="test")


def test_missing_leaf_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \*\.json in .*all_data or "):
        load_shakespeare(tmp_path, split="train")
    with pytest.raises(DataError, match="nowhere: expected a directory"):
        load_shakespeare(tmp_path / "nowhere")


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
    assert all(role.inputs.shape == (len(role), 80) for role in roles)
