"""Competing programs, each in a separate environment under ``.bench/``.

An environment is made when it is first used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
"""Directory of the scripts that run in those environments."""
ROOT = HERE.parent.parent / ".bench"


def make_environment(name: str, *requirements: str) -> Path:
    """Return the interpreter of an environment with these packages, from the default index."""
    home = ROOT / name
    python = home / "bin" / "python"
    made = home / ".made"
    if not made.exists() or made.read_text() != "\n".join(requirements):
        venv.create(home, with_pip=True, clear=True)
        subprocess.run(
            [
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                *requirements,
            ],
            check=True,
        )
        made.write_text("\n".join(requirements))
    return python


def run_script(python: Path, script: Path, *arguments: str) -> dict[str, float]:
    """Run a script of ours in a competitor's environment, on one core.

    It prints one JSON object of figures, which is returned.
    """
    one_core = dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS"), "1"
    )
    done = subprocess.run(
        [python, script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **one_core},
    )
    if done.returncode != 0:
        sys.exit(f"{script.name} failed in {python}:\n{done.stderr[-2000:]}")
    figures = json.loads(done.stdout.splitlines()[-1])
    return {str(name): float(value) for name, value in figures.items()}
