"""Modules that pytest skips when it looks for doctests, and what all tests share."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run: a failure is one of the code, not of the day or of a slow disk.
_UNCHECKED = HealthCheck.too_slow, HealthCheck.function_scoped_fixture
settings.register_profile(
    "fixed", derandomize=True, deadline=None, suppress_health_check=_UNCHECKED
)
settings.load_profile("fixed")

# Threads that wait for work sleep: two processes whose threads spin take each other's cores, and
# twice the time. It is read when PyTorch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Triton comes with PyTorch's CUDA builds only; without it this module cannot be imported.
collect_ignore_glob = [] if find_spec("triton") else ["src/diffsketch/sketch/kernels/gpu*.py"]

# Frameworks that need not be installed.
for name, library in (("trainer", "transformers"), ("lightning",) * 2, ("accelerate",) * 2):
    if not find_spec(library):
        collect_ignore_glob.append(f"src/diffsketch/ddp/integrations/{name}.py")

# Spark is an extra, and so is Flower.
if not find_spec("pyspark"):
    collect_ignore_glob.append("src/diffsketch/analytics/spark.py")

if not find_spec("flwr"):
    collect_ignore_glob += ["src/diffsketch/flower/*.py", "tests/flower/*.py"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory that commands are run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def restore_threads() -> Iterator[None]:
    """PyTorch's number of threads is what it was, whatever a test sets."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
