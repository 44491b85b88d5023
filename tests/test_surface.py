"""The public names: each can be imported from the top, and nothing heavy comes before its use."""

from __future__ import annotations

import subprocess
import sys

import pytest

import diffsketch


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
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout.strip() == "[]"


def test_it_imports_where_posix_is_missing() -> None:
    """No `fcntl`, `resource`, `pwd` or `/proc` at import: as on Windows, as far as that shows."""
    code = (
        "import sys, os\n"
        "import torch, numba, scipy.optimize, typer, pydantic, rich, safetensors.torch\n"
        "for name in ('fcntl', 'resource', 'pwd', 'grp', 'termios'): sys.modules[name] = None\n"
        "os.name = 'nt'\n"
        "import types; sys.modules['msvcrt'] = types.ModuleType('msvcrt')\n"
        "import diffsketch.files\n"
        "os.name = 'posix'\n"
        "import diffsketch.cli, diffsketch.app.session, diffsketch.training.simulation\n"
        "import diffsketch.auditing, diffsketch.planning, diffsketch.privacy, diffsketch.ddp\n"
    )
    command = [sys.executable, "-c", code]
    subprocess.run(command, check=True, capture_output=True, timeout=120)  # noqa: S603
