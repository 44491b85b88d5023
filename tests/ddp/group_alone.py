"""A process group of this one process: for what needs a group, and no other rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch.distributed as dist

__all__ = ["alone"]


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Over gloo; the folder holds the file by which members find each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
