"""How many lines of code, docstrings and comments has each room?

    python -m benchmarks.lines

Lines of code are counted without docstrings, comments and blank lines. `CONTRIBUTING.md` shows the
table.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

_NO_CODE = {
    tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    tokenize.ENCODING,
}  # fmt: skip
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_ROOT = Path(__file__).parents[1]


def count(source: str) -> tuple[int, int, int]:
    """Lines of code, of docstrings, and of comments that stand alone.

    >>> count('"What."  # a docstring\\n# why\\nx = 1  # and this\\n')
    (1, 1, 1)
    """
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    code -= docstrings
    return len(code), len(docstrings), len(comments - code - docstrings)


def rooms() -> dict[str, tuple[int, int, int, int]]:
    """Files, and lines of the three kinds, by room."""
    package = _ROOT / "src" / "diffsketch"
    folders = [path for path in sorted(package.iterdir()) if (path / "__init__.py").exists()]
    found = {path.name: sorted(path.rglob("*.py")) for path in folders}
    found["(top)"] = sorted(package.glob("*.py"))
    found["library"] = [file for files in list(found.values()) for file in files]
    papers = sorted((_ROOT / "paper").rglob("*.py"))
    tests = _ROOT / "paper" / "tests"
    found["paper"] = [file for file in papers if tests not in file.parents]
    found["tests"] = [*sorted((_ROOT / "tests").rglob("*.py")), *sorted(tests.rglob("*.py"))]
    table = {}
    for name, files in found.items():
        lines = [count(file.read_text(encoding="utf-8")) for file in files]
        code, docstrings, comments = (sum(kind) for kind in zip(*lines, strict=True))
        table[name] = len(files), code, docstrings, comments
    return table


def main() -> None:
    print("| room | files | code | docstrings | comments |")
    print("| --- | --- | --- | --- | --- |")
    for name, numbers in rooms().items():
        print(f"| {name} | {' | '.join(f'{number:,}' for number in numbers)} |")


if __name__ == "__main__":
    main()
