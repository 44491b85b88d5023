"""Dependencies point one way, and each heavy package is imported in one place.

Read from the source with `ast`, so that an import inside a function counts and nothing is run.
"""

from __future__ import annotations

import ast
from fnmatch import fnmatch
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
MODULES = sorted(SOURCE.rglob("*.py"))

# Which of our modules a part may import, besides those of its own folder.
MAY_IMPORT = {
    "diffsketch/errors.py": set[str](),
    "diffsketch/files.py": set[str](),
    "diffsketch/sketch/*": {"errors"},
    "diffsketch/privacy/*": {"errors", "files", "sketch"},
    "diffsketch/auditing/*": {
        "engines",
        "errors",
        "files",
        "learning",
        "methods",
        "privacy",
        "sketch",
    },
    "diffsketch/planning/*": {"errors", "methods", "privacy", "sketch", "wire"},
    "diffsketch/wire/*": {"errors"},
    "diffsketch/secure_sum/*": {"errors", "wire"},
    "diffsketch/methods/*": {"errors", "privacy", "sketch", "wire"},
    "diffsketch/training/[!d]*": {"errors", "methods", "privacy", "sketch", "wire"},
    "diffsketch/training/devices.py": {"errors"},
    "diffsketch/training/data/*": {"errors"},
    "diffsketch/engines/*": {
        "errors",
        "files",
        "learning",
        "methods",
        "privacy",
        "secure_sum",
        "sketch",
        "wire",
    },
    "diffsketch/app/*": {
        "__version__",
        "engines",
        "errors",
        "files",
        "learning",
        "methods",
        "privacy",
        "sketch",
        "wire",
    },
    "diffsketch/pages/[!r]*": {"errors", "files", "privacy"},
    "diffsketch/pages/runs*.py": {"errors", "files", "privacy", "run"},
    "diffsketch/reproduction/*": {
        "__version__",
        "audit",
        "engines",
        "errors",
        "files",
        "learning",
        "methods",
        "privacy",
        "report",
        "run",
        "sketch",
        "wire",
    },
    "diffsketch/__init__.py": {"errors", "methods", "sketch"},
    "diffsketch/app/demo.py": {"errors", "files", "learning", "sketch"},
    "diffsketch/app/demo_report.py": {"demo"},
    "diffsketch/cli/*": {
        "__version__",
        "audit",
        "demo",
        "demo_report",
        "errors",
        "experiments",
        "files",
        "plan",
        "report",
        "run",
    },
}

# Where a package of others may be imported, if not everywhere.
ONLY_IN = {
    "cryptography": "diffsketch/secure_sum/primitives.py",
    "triton": "diffsketch/sketch/kernels/gpu*.py",
    "numba": "diffsketch/sketch/kernels/cpu*.py diffsketch/training/local/closed_cpu.py "
    "diffsketch/wire/digits.py",
    "llvmlite": "diffsketch/sketch/kernels/cpu*.py",
    "matplotlib": "diffsketch/app/demo.py diffsketch/auditing/pictures.py "
    "diffsketch/pages/static.py",
    "plotly": "diffsketch/pages/interactive.py",
    "dp_accounting": "diffsketch/privacy/accounting/*.py",
    "safetensors": "diffsketch/app/*.py",
    "typer": "diffsketch/cli/*.py",
    "flwr": "diffsketch/flower/*.py",
}


def imported_names(source: str) -> set[str]:
    """Every module that a source imports, in full; `from a import b` gives both `a` and `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports must be absolute"
            assert node.module is not None
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _allows(patterns: str, path: str) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns.split())


def violations(path: str, source: str) -> list[str]:
    """What a module (its path below `src`) imports but may not."""
    names = imported_names(source)
    found = [name for name in names if not _allows(ONLY_IN.get(name.split(".")[0], "*"), path)]
    (pattern,) = (pattern for pattern in MAY_IMPORT if fnmatch(path, pattern))
    own_folder = pattern.rpartition("/")[0].replace("/", ".") if "*" in pattern else None
    for name in names:
        if name.split(".")[0] != "diffsketch":
            continue
        if own_folder and f"{name}.".startswith(f"{own_folder}."):
            continue
        # `from diffsketch import errors` also gives the bare package: the name beside it counts.
        if name != "diffsketch" and name.split(".")[1] not in MAY_IMPORT[pattern]:
            found.append(name)
    return sorted(found)


def test_every_module_has_one_rule() -> None:
    assert MODULES
    for path in MODULES:
        name = path.relative_to(SOURCE).as_posix()
        assert sum(fnmatch(name, pattern) for pattern in MAY_IMPORT) == 1, name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_imports_are_allowed(path: Path) -> None:
    name = path.relative_to(SOURCE).as_posix()
    assert violations(name, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("sketch/value.py", "from diffsketch.training import data", "diffsketch.training"),
        ("sketch/value.py", "from diffsketch import cli", "diffsketch.cli"),
        ("sketch/value.py", "from diffsketch import CountSketch", "diffsketch.CountSketch"),
        ("learning/data/idx.py", "import diffsketch.sketch", "diffsketch.sketch"),
        ("sketch/kernels/cpu.py", "def f():\n    import triton.language", "triton.language"),
        ("sketch/kernels/networks.py", "from numba import njit", "numba"),
        ("cli/demo.py", "from matplotlib import pyplot", "matplotlib.pyplot"),
        ("demo.py", "import typer", "typer"),
        ("secure_sum/own.py", "from cryptography import x509", "cryptography.x509"),
        ("secure_sum/client.py", "import diffsketch.methods", "diffsketch.methods"),
        ("demo.py", "import diffsketch.cli", "diffsketch.cli"),
    ],
)
def test_forbidden_imports_are_found(path: str, source: str, expected: str) -> None:
    assert expected in violations(f"diffsketch/{path}", source)
