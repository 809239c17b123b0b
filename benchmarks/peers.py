"""Other people's programs, each in an environment of its own under ``.bench/``, made when it is first asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent / ".bench"


def environment(name: str, *requirements: str) -> Path:
    """The interpreter of an environment that holds these packages, from the ordinary index."""
    home = ROOT / name
    python = home / "bin" / "python"
    made = home / ".made"
    if not made.exists() or made.read_text() != "\n".join(requirements):
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements], check=True)
        made.write_text("\n".join(requirements))
    return python


def ask(python: Path, script: Path, *arguments: str) -> dict[str, float]:
    """Run a script of ours in a peer's environment, on one core; it prints one JSON object of figures."""
    one_core = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    done = subprocess.run([python, script, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **one_core})
    if done.returncode != 0:
        sys.exit(f"{script.name} failed in {python}:\n{done.stderr[-2000:]}")
    figures = json.loads(done.stdout.splitlines()[-1])
    return {str(name): float(value) for name, value in figures.items()}
