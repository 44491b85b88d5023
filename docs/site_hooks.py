"""Pages of the site that follow from the sources: the reference, and the notebooks with pictures.

MkDocs calls `on_files` and `on_page_markdown`. The README is the first page. The reference has
every public name (`__all__`) of each package below; one without a docstring is an error. A notebook
is shown as it was committed: nothing is run.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

PACKAGES = (
    "analytics", "ddp", "flower", "silos", "training", "planning", "privacy", "methods", "sketch",
    "secure_sum", "auditing", "wire",
)  # fmt: skip
TRAINING = (
    "tasks.Task", "tasks.load_task", "rounds.FedAvg", "rounds.DistributedSGD",
    "simulation.Simulation",
)  # fmt: skip  # public, and imported where they are needed only
INHERITED = {"NoiseKey": "from_integer", "SketchKey": "from_integer"}  # of a base without a page
BASELINES = ("CpSgd", "DiffSketch", "RawLaplace", "SketchLaplace")  # of papers: last on their page


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each package and each notebook, and the documents beside this folder."""
    for name, page in (
        ("README", "index"),
        ("CONTRIBUTING", "contributing"),
        ("CHANGELOG", "changelog"),
        ("SECURITY", "security"),
    ):
        text = Path(f"{name}.md").read_text(encoding="utf-8").replace("](docs/", "](")
        text = re.sub(r"\]\((CONTRIBUTING|CHANGELOG|SECURITY)", lambda f: f[0].lower(), text)
        files.append(File.generated(config, f"{page}.md", content=text))
    source = griffe.load("diffsketch", search_paths=["src"])
    files.append(File.generated(config, "reference/diffsketch.md", content=front_page(source)))
    for package in PACKAGES:
        page = reference_page(source[package], package)
        files.append(File.generated(config, f"reference/{package}.md", content=page))
    for path in sorted(Path(config.docs_dir, "notebooks").glob("*.ipynb")):
        files.remove(files.src_uris[f"notebooks/{path.name}"])
        page = notebook_page(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files outside of this folder without a link: the site does not have them."""
    return re.sub(
        r"\[([^\]]+)\]\((?:(?:\.\./)+(?:examples|benchmarks|src|tests)[^)]*|CITATION\.cff)\)",
        r"\1",
        markdown,
    )


class FencedDoctests(griffe.Extension):
    """Show doctests, which docstrings here have without a heading, as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the paragraphs of a docstring that begin with a prompt."""
        if obj.docstring:
            text = obj.docstring.value
            doctest = re.compile(r"^>>> .*?(?=\n\s*\n(?!>>>)|\Z)", flags=re.DOTALL | re.MULTILINE)
            text = re.sub(r"^(?!\* |  )(.+)\n(?=\* )", r"\1\n\n", text, flags=re.MULTILINE)
            obj.docstring.value = doctest.sub(lambda found: f"```pycon\n{found[0]}\n```", text)


def front_page(package: griffe.Object | griffe.Alias) -> str:
    """The names of the package itself: links to their pages, or what has no other page."""
    links, parts = [], []
    for name in map(str, package.exports or ()):
        member: Any = package[name]
        if not (member.is_class or member.is_function):  # without a place on a page
            links.append(f"`{name}`")
        elif member.target_path.startswith(("diffsketch.app.", "diffsketch.errors.")):
            parts.append(f"::: {member.target_path}")
        else:
            links.append(f"[`{name}`][{member.target_path}]")
    introduction = package.docstring.value if package.docstring else ""
    return "\n\n".join(["# diffsketch", introduction, ", ".join(links) + ".", *sorted(parts)])


def reference_page(package: griffe.Object | griffe.Alias, name: str) -> str:
    """The documentation of a package's public names, each of which must have one."""
    parts = [f"# diffsketch.{name}", package.docstring.value if package.docstring else ""]
    for export in sorted(package.exports or TRAINING, key=lambda name: str(name) in BASELINES):
        member = package[str(export)]
        if member.is_function or member.is_class:
            if not member.docstring:
                raise PluginError(f"diffsketch.{name}.{export} has no docstring")
            shown = INHERITED.get(str(export))
            options = f"\n    options: {{ inherited_members: [{shown}] }}" if shown else ""
            parts.append(f"::: diffsketch.{name}.{export}{options}")
    return "\n\n".join(parts)


def notebook_page(path: Path) -> str:
    """A notebook as Markdown: its texts, its code, and what that printed and drew."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"]).replace(".ipynb)", ".md)")  # links to other notebooks
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts.extend(output_text(output) for output in cell.get("outputs", ()))
    return "\n\n".join(parts)


def output_text(output: dict[str, Any]) -> str:
    """One output of a cell: a picture, or text as it was printed."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="The picture that this code draws" src="data:image/png;base64,{picture}">'
    text = "".join(output.get("text", data.get("text/plain", "")))
    style = "white-space: pre-wrap; background: none"  # long lines wrap, on phones too
    return f'<pre class="output"><code style="{style}">{html.escape(text)}</code></pre>'
