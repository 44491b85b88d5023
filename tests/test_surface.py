"""The public names: each can be imported from the top, and nothing heavy comes before its use."""

from __future__ import annotations

import pytest

import diffsketch
from tests.helpers.commands import python


def test_every_public_name_can_be_imported() -> None:
    assert sorted(diffsketch.__all__) == sorted(set(diffsketch.__all__))
    assert dir(diffsketch) == sorted(diffsketch.__all__)
    for name in diffsketch.__all__:
        assert getattr(diffsketch, name) is not None
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = diffsketch.nothing


def test_the_package_alone_loads_nothing_heavy() -> None:
    heavy = "torch", "numba", "scipy", "dp_accounting"
    code = f"import sys, diffsketch; print([m for m in {heavy} if m in sys.modules])"
    assert python("-c", code).stdout.strip() == "[]"


WITHOUT_POSIX = """
import builtins, importlib, io, os, pkgutil, socket, sys, types
# Other libraries have ways of their own around what is missing, so they come first.
import concurrent.futures.process, dp_accounting, numba, plotly.offline, rich.progress, typer
import cryptography.hazmat.primitives.asymmetric.x25519, jinja2, matplotlib.figure
import safetensors.torch, scipy.optimize, scipy.stats, torch.distributed, torch.utils.data

for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
sys.modules["msvcrt"] = types.ModuleType("msvcrt")
for name in ("fork", "register_at_fork", "getuid", "sysconf", "sched_getaffinity", "O_DIRECTORY"):
    delattr(os, name)
del socket.AF_UNIX

def opened(path, *arguments, real=io.open, **options):
    assert not str(path).startswith("/proc"), path
    return real(path, *arguments, **options)

builtins.open = io.open = opened
import diffsketch

for module in pkgutil.walk_packages(diffsketch.__path__, "diffsketch."):
    # Those of libraries that may be missing here: Flower, Spark, the frameworks, Triton.
    missing = ".flower", ".spark", ".integrations.", ".gpu", "__main__"
    if not any(part in module.name for part in missing):
        importlib.import_module(module.name)
        print(module.name)
"""


@pytest.mark.slow
def test_it_imports_where_posix_is_missing() -> None:
    """Every module, as on Windows, as far as that shows: no `fcntl`, `/proc`, AF_UNIX or fork."""
    done = python("-c", WITHOUT_POSIX)
    assert done.returncode == 0, done.stderr
    assert {"diffsketch.cli", "diffsketch.ddp.hook"} <= set(done.stdout.split())
