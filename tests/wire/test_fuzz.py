"""Whatever arrives: a `WireError` or a message, and no memory but in proportion to it.

`fuzz/wire.py` looks for more inputs, with atheris; its saved ones are run here without it.
"""

from __future__ import annotations

import importlib
import random
import re
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import diffsketch.wire
from diffsketch.wire import Header, Message, MessageFormat, WireError
from tests.helpers.commands import python
from tests.helpers.refusals import refused

ROOT = Path(__file__).parents[2]
CORPUS = sorted((ROOT / "fuzz" / "corpus" / "wire").iterdir())
EXPECTED = MessageFormat("sketch", 7850, (2, 3), "float32", 32)

sys.path.insert(0, str(ROOT / "fuzz"))
target = importlib.import_module("wire_target")
sys.path.pop(0)


@given(st.binary(max_size=200))
@example(b"")
@settings(max_examples=300, deadline=None)
def test_random_bytes(data: bytes) -> None:
    with pytest.raises(WireError):
        Message.from_bytes(data, EXPECTED, round_index=0, fingerprint=bytes(8))


@given(st.integers(0, 255), st.integers(0, 255), st.binary(max_size=120))
@settings(max_examples=600, deadline=None)
def test_changed_messages(layout: int, mode: int, rest: bytes) -> None:
    target.fuzz_one(bytes([layout, mode]) + rest)


def test_saved_inputs_reach_every_answer() -> None:
    answers = {target.fuzz_one(path.read_bytes()) for path in CORPUS}
    words = (
        "taken", "truncated", "too long", "not a message of ours", "of version", "altered",
        "method code", "cells of code", "bits", "dim", "shape", "of round", "another key", "sum of",
        "not finite", "other bits than zeros", "already sent", "beyond float32",
    )  # fmt: skip
    missing = [word for word in words if not any(word in answer for answer in answers)]
    assert missing == []


def test_broken_promises_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a format that ignores its filling bits has two encodings of one message."""
    dirty = bytes([2, 3]) + b"\xff" * 6
    assert "other bits than zeros" in target.fuzz_one(dirty)
    packing = importlib.import_module("diffsketch.wire.message")
    unpack = packing.unpack

    def forgiving(data: bytes, layout: MessageFormat) -> object:
        return unpack(data[:-1] + bytes([data[-1] & 0x1F]), layout)

    monkeypatch.setattr(packing, "unpack", forgiving)
    refused(RuntimeError, "encoded as other bytes", target.fuzz_one, dirty)


def test_memory_is_in_proportion_to_what_arrived() -> None:
    """Formats of terabytes, promised by the header or even expected, are not allocated."""
    rng = random.Random(0)
    huge = MessageFormat("sketch", 2**40, (2**16 - 1, 2**40), "float32", 32)
    head = Header.of(huge, round_index=0, sender=0, fingerprint=bytes(8)).to_bytes()
    for expected in (EXPECTED, huge):
        for size in (0, 10, 10**6):
            data = head + rng.randbytes(size)
            tracemalloc.start()
            with pytest.raises(WireError):
                Message.from_bytes(data, expected, round_index=0, fingerprint=bytes(8))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 50_000


def test_accepted_messages_take_a_constant_times_their_size() -> None:
    for layout in target.FORMATS:
        big = MessageFormat(layout.method, layout.dim, (50_000,), layout.cells, layout.bits)
        data = target.valid(big, 1)
        tracemalloc.start()
        inbox = diffsketch.wire.Inbox(big, round_index=3, fingerprint=bytes(range(8)))
        inbox.add(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 64 * 8 * len(data)  # cells of one bit become words of 64; a few of those


UNSAFE = r"\b(c?[Pp]ickle|dill|joblib|marshal|shelve|eval|exec|loads?|allow_pickle|Unpickler)\b"


def test_nothing_is_unpickled() -> None:
    for path in sorted(Path(diffsketch.wire.__file__).parent.glob("**/*.py")):
        code = re.sub(r'""".*?"""|#.*', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert "import" in code
        assert not re.search(UNSAFE, code), path
    for source in ("import pickle", "from torch import load", "torch.load(f)", "eval(x)"):
        assert re.search(UNSAFE, source)  # the control


def test_the_fuzzer_runs(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="only needed to look for new inputs")
    script = str(ROOT / "fuzz" / "wire.py")
    done = python(script, "-runs=500", "-seed=1", cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Done 500 runs" in done.stderr
