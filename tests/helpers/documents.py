"""Code blocks of the documents: found, run in their order, and compared with what they print."""

from __future__ import annotations

import contextlib
import io
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

from diffsketch.methods import base

ROOT = Path(__file__).parents[2]
DOCUMENTS = tuple(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if re.search(r"^```py", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
)


def blocks(document: str, *, flower: bool) -> list[str]:
    """Python blocks, those with or those without Flower."""
    text = (ROOT / document).read_text(encoding="utf-8")
    found = re.findall(r"^```py(?:thon)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [block for block in found if bool(re.search(r"[fF]lower|flwr", block)) is flower]


def given() -> dict[str, Any]:
    """Objects that fragments speak of and that are the reader's own."""
    from torch.nn.parallel import DistributedDataParallel

    from diffsketch import Budget, SketchKey

    network = nn.Linear(784, 10)
    return {
        "network": network,
        "model": nn.Linear(784, 10),
        "optimizer": torch.optim.SGD(network.parameters(), lr=0.1),
        "batches": [(torch.zeros(2, 784), torch.zeros(2, dtype=torch.int64))] * 16,
        "loss_of": nn.functional.cross_entropy,
        "key": SketchKey.from_integer(7),
        "Budget": Budget,
        "DistributedDataParallel": DistributedDataParallel,
    }


def run_blocks(document: str, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run blocks; lines of comment are what they have to print.

    Those of the README are copied one by one, so each has an empty namespace, and makes and ends
    its own process group. Other documents continue from block to block.
    """
    alone = document == "README.md"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    one = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in one.items():
        monkeypatch.setenv(name, value)
    names, methods = given(), dict(base._KINDS)
    if not alone and not any("init_process_group" in block for block in found):
        distributed.init_process_group("gloo")
    try:
        for block in found:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block, document, "exec"), {} if alone else names)  # noqa: S102
            assert not (alone and distributed.is_initialized()), "a process group is left"
            said = " ".join(re.findall(r"^# (.*)$", block, flags=re.MULTILINE))
            if said:
                assert printed.getvalue().split() == said.split(), document
    finally:
        base._KINDS.clear()  # a document may register a method of its own
        base._KINDS.update(methods)
        if distributed.is_initialized():
            distributed.destroy_process_group()
