"""Cost of an installation: megabytes of the core and each extra, and seconds to start.

Every figure is taken in a new environment, from this checkout, without compiled bytecode. Seconds
are processor time.
"""

from __future__ import annotations

import os
import subprocess
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Measure

ROOT = Path(__file__).parent.parent.parent
START = """
import resource, subprocess
subprocess.run({command}, stdout=subprocess.DEVNULL, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime)
"""


def measures() -> Iterator[Measure]:
    """Yield the core first, then the addition of each extra."""
    with TemporaryDirectory() as folder:
        core, python = _megabytes(Path(folder), "")
        yield Measure("install", "core_mb", core, "MB", "lower", target=100)
        yield Measure(
            "install",
            "import_shoal_cpu_s",
            _seconds(python, "-c", "import shoal"),
            "s",
            "lower",
            target=0.1,
        )
        yield Measure(
            "install",
            "help_cpu_s",
            _seconds(python, "-m", "shoal", "--help"),
            "s",
            "lower",
            target=0.4,
        )
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra in extras:
        with TemporaryDirectory() as folder:
            size, _ = _megabytes(Path(folder), f"[{extra}]")
            yield Measure("install", f"extra_{extra}_mb", size - core, "MB", "lower")


def _megabytes(folder: Path, extra: str) -> tuple[float, Path]:
    """Return the size of site-packages with shoal, minus that of an empty environment."""
    venv.create(folder, with_pip=True)
    site = next(folder.glob("lib/python*/site-packages"))
    empty = _size(site)
    python = folder / "bin" / "python"
    command: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
        f"{ROOT}{extra}",
    ]
    subprocess.run(command, check=True)
    return (_size(site) - empty) / 1e6, python


def _size(site: Path) -> int:
    return sum(
        path.stat().st_size for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc"
    )


def _seconds(python: Path, *arguments: str) -> float:
    """Return the processor time of a warm start with bytecode: the best of five."""
    script = START.format(command=[str(python), *arguments])
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    runs = [
        subprocess.run(
            [python, "-c", script], capture_output=True, text=True, check=True, env=usual
        )
        for _ in range(6)
    ]
    return min(float(run.stdout) for run in runs[1:])
