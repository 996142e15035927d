"""The version of the project: that of its code, wherever it lies."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import sweep
from sweep.version import project_version


def test_the_version_names_the_code_not_its_place(tmp_path):
    root = Path(sweep.__file__).parents[1]
    copy = tmp_path / "copy"
    for module in ("dirdp", "sweep", "search_spaces"):
        shutil.copytree(root / module, copy / module, ignore=shutil.ignore_patterns("__pycache__"))
    assert version_in(copy) == project_version()
    with (copy / "dirdp" / "accounting.py").open("a") as file:
        file.write("\n")
    assert version_in(copy) != project_version()


def version_in(folder):
    code = "from sweep.version import project_version; print(project_version())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
