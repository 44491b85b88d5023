"""The package as it would be published: a small wheel that works where nothing else of it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.helpers.documents import ROOT

pytestmark = pytest.mark.slow
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    done = run([*command, "--build-constraint", str(ROOT / "constraints.txt"), str(ROOT)], folder)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    bare = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(  # noqa: S603 - fixed arguments
        command, cwd=folder, env=bare, capture_output=True, text=True, check=False
    )


def test_it_is_small_and_has_what_it_needs(wheel: Path) -> None:
    assert wheel.stat().st_size < 15e6
    names = zipfile.ZipFile(wheel).namelist()
    assert "diffsketch/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "paper", "docs", "benchmarks"))]


@pytest.mark.skipif(not WORKFLOW.exists(), reason="a source distribution has no workflow")
def test_only_versions_that_are_run_are_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = re.findall(r"Python :: (3\.\d+)", " ".join(declared["project"]["classifiers"]))
    (matrix,) = re.findall(r"python: \[(.*?)\]", WORKFLOW.read_text(encoding="utf-8"))
    assert listed == re.findall(r"[\d.]+", matrix)


def test_it_runs_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """Our dependencies are taken from here; our own sources and command come from the wheel."""
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    installing = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    done = run([*installing, "--no-deps", "--no-index", str(wheel)], tmp_path)
    assert done.returncode == 0, done.stderr
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    where = run([str(python), "-c", "import diffsketch; print(diffsketch.__file__)"], empty)
    assert where.stdout.startswith(str(site)), where.stderr
    script = str(tmp_path / "venv" / "bin" / "diffsketch")
    helped = run([script, "--help"], empty)
    assert "Usage: diffsketch" in helped.stdout, helped.stderr
    assert list(empty.iterdir()) == []
    done = run([script, "run", "--rounds", "2", "--method", "none"], empty)
    assert done.returncode == 0, done.stderr
    assert (empty / "runs").is_dir()
