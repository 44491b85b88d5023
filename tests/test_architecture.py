"""The contract of the package: who may import whom, and names that explain themselves.

Read from the source with `ast`, so that an import inside a function counts and nothing is run.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, PAPER = ROOT / "src" / "diffsketch", ROOT / "paper"
MODULES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
MODULES |= {
    path.relative_to(ROOT).as_posix(): path
    for path in sorted(PAPER.rglob("*.py"))
    if not path.is_relative_to(PAPER / "tests")
}

# Rooms, and the rooms that each may import besides itself. Dependencies point one way: down. The
# paper, outside of the package, may import all but the engines; nothing imports the paper.
BASE = {"errors", "files", "compiled"}
CORE = BASE | {"sketch", "privacy", "wire", "methods"}
RUNS = CORE | {"silos", "training", "planning", "pages"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "files": {"errors"},
    "compiled": {"errors", "files"},
    "sketch": BASE,
    "privacy": BASE | {"sketch"},
    "wire": BASE,
    "logs": BASE | {"privacy"},
    "methods": CORE,
    "secure_sum": BASE | {"wire"},
    "silos": CORE,
    "training": CORE | {"silos", "logs"},
    "ddp": CORE | {"silos", "logs"},
    "flower": CORE | {"secure_sum", "silos", "logs"},
    "planning": CORE,
    "analytics": CORE | {"planning"},
    "auditing": CORE | {"analytics", "silos", "training", "ddp"},
    "pages": BASE | {"privacy"},
    "app": RUNS | {"analytics", "logs", "__version__"},
    "cli": CORE | {"analytics", "planning", "auditing", "pages", "app", "__version__"},
    "paper": RUNS | {"auditing", "app", "cli", "__version__"},
    "__init__": CORE | {"analytics", "planning", "auditing", "training", "app"},
    "__main__": {"cli"},
}

# Files that may import a package of others, where not every file may.
ONLY_IN = {
    "cryptography": "secure_sum/*.py",
    "triton": "sketch/kernels/gpu*.py",
    "numba": "compiled.py sketch/gram.py sketch/keys.py sketch/statistics.py "
    "sketch/kernels/cpu*.py training/closed_form.py",
    "llvmlite": "compiled.py sketch/kernels/*.py",
    "matplotlib": "auditing/pictures.py app/answers.py pages/pictures.py",
    "plotly": "pages/*.py",
    "jinja2": "pages/*.py paper/document.py",
    "dp_accounting": "privacy/accounting/*.py",
    "safetensors": "app/*.py",
    "pydantic": "app/*.py cli.py paper/*.py",
    "typer": "cli.py paper/__main__.py",
    "flwr": "flower/*.py",
    "duckdb": "analytics/files.py",
    "pyspark": "analytics/spark.py",
}

# Images where the field has terms, and openings that do not say what a thing is or does.
BAD_NAMES = (
    *("desk", "books", "members", "sealing", "summing", "following", "showing", "drawn", "words"),
    "noised",
)
BAD_OPENINGS = ("What", "Of", "That", "How", "With", "By", "Which", "Where", "Who")


def imports_in(source: str) -> Iterator[str]:
    """Every module that a source imports, in full; `from a import b` gives both `a` and `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports must be absolute"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def forbidden_imports(path: str, source: str) -> list[str]:
    """Imports of a module (its path in the package) that the contract does not allow."""
    room = path.split("/")[0].removesuffix(".py")
    found = set()
    for name in imports_in(source):
        package, *rest = name.split(".")
        files = ONLY_IN.get(package, "*").split()
        inside = package != "diffsketch" or not rest or rest[0] in MAY_IMPORT[room] | {room}
        inside = inside and (package != "paper" or room == "paper")
        if not inside or not any(fnmatch(path, pattern) for pattern in files):
            found.add(name)
    return [f"{path} imports {name}" for name in sorted(found)]


def documented(path: str, source: str) -> Iterator[tuple[str, str]]:
    """Places and docstrings of a module and of everything in it."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield f"{path}: {getattr(node, 'name', 'module')}", text


def badly_opened(path: str, source: str) -> list[str]:
    """Docstrings that begin with neither a verb nor a noun phrase."""
    return [
        f"{where}: {text.splitlines()[0]}"
        for where, text in documented(path, source)
        if text.split(maxsplit=1)[0].rstrip(".,:") in BAD_OPENINGS
    ]


def test_dependencies_point_one_way() -> None:
    assert {path.split("/")[0].removesuffix(".py") for path in MODULES} <= set(MAY_IMPORT)
    found = [
        line for path, file in MODULES.items() for line in forbidden_imports(path, file.read_text())
    ]
    assert found == []


def test_forbidden_imports_are_found() -> None:
    planted = [
        ("sketch/hashing.py", "from diffsketch.training import data"),
        ("sketch/hashing.py", "from diffsketch import cli"),
        ("sketch/hashing.py", "from diffsketch import CountSketch"),
        ("sketch/kernels/cpu.py", "def f():\n    import triton.language"),
        ("sketch/hashing.py", "from numba import njit"),
        ("app/session.py", "import typer"),
        ("app/session.py", "from paper import figures"),
        ("wire/message.py", "from cryptography import x509"),
        ("secure_sum/client.py", "import diffsketch.methods"),
    ]
    assert all(forbidden_imports(*case) for case in planted)


def test_names_explain_themselves() -> None:
    parts = {part for path in MODULES for part in path.removesuffix(".py").split("/")}
    assert not parts & set(BAD_NAMES)
    classes = Counter(
        node.name
        for file in MODULES.values()
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in classes.items() if count > 1] == []


def test_folders_hold_several_files() -> None:
    folders = Counter(path.rpartition("/")[0] for path in MODULES if "__init__" not in path)
    few = {folder for folder, count in folders.items() if count < 3}
    assert few <= {"training/data"}  # one file a data set, beside the files that ship


def test_docstrings_say_what_a_thing_is_or_does() -> None:
    assert badly_opened("planted.py", 'def f():\n    """Of one strategy."""') != []
    assert [
        line for path, file in MODULES.items() for line in badly_opened(path, file.read_text())
    ] == []
