"""Write ``constraints-hashes.txt``: a coordinator's packages and hashes of their wheels.

``make hashes`` calls it. Versions are those of ``constraints.txt``. pip chooses one wheel of each
package for each supported Python and platform and reports its SHA-256; nothing is installed. The
file names no index and no address: pip uses the one that it is configured for.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from tools.supply.packages import find_packages

ROOT = Path(__file__).parent.parent.parent
HASHES = ROOT / "constraints-hashes.txt"
EXTRAS = ("serve", "anonymous", "report", "postgres", "redis")
"""What a coordinator, a relay or a participant of an anonymous study needs."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "Linux x86-64, glibc 2.28 or newer": [
        *(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)),
        "manylinux2014_x86_64",
    ],
    "Linux aarch64, glibc 2.28 or newer": [
        *(f"manylinux_2_{minor}_aarch64" for minor in range(28, 16, -1)),
        "manylinux2014_aarch64",
    ],
    "macOS 14 or newer on Apple silicon": [
        *(f"macosx_{major}_0_arm64" for major in range(14, 10, -1)),
        *(f"macosx_{major}_0_universal2" for major in range(14, 10, -1)),
        *(f"macosx_10_{minor}_universal2" for minor in range(16, 8, -1)),
    ],
}

# Python 3.11.0 to 3.11.2 would need one more package.
_TARGETS = [
    {
        "python_version": python,
        "python_full_version": f"{python}.3",
        "sys_platform": system.lower(),
        "platform_system": system,
    }
    for python, system in itertools.product(PYTHONS, ("Linux", "Darwin"))
]
_HEAD = """\
# The packages of a coordinator and the build backend, with the SHA-256 of one wheel for each of:
{targets}
# CPython 3.11 is 3.11.3 or newer. On other platforms pip refuses to install from this file.
# The extras are {extras}.
# In a clone, in a new environment:
#   pip install --require-hashes --only-binary :all: --no-deps -r {name}
#   pip install --no-build-isolation --no-deps .
# Written by `make hashes` from constraints.txt; do not edit.
"""


def read_pins(text: str) -> dict[str, str]:
    """Return name -> version of a constraints file."""
    return {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)
    }


def list_pins() -> dict[str, str]:
    """Return name -> pinned version of all packages that the file contains."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    roots = [f"shoal[{','.join(EXTRAS)}]", *project["build-system"]["requires"]]
    pins = read_pins((ROOT / "constraints.txt").read_text("utf-8"))
    names = [name for name in find_packages(roots, _TARGETS) if name != "shoal"]
    missing = [name for name in names if name not in pins]
    if missing:
        sys.exit(f"constraints.txt has no version of {', '.join(missing)}.")
    return {name: pins[name] for name in names}


def find_hashes(pins: Mapping[str, str], python: str, platform: str) -> dict[str, str] | None:
    """Return name -> SHA-256 of the wheel for a target; None if a package has no wheel for it."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
                *("--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:"),
                *("--report", str(report), "--target", directory),
                *("--implementation", "cp", "--python-version", python),
                *(part for tag in PLATFORMS[platform] for part in ("--platform", tag)),
                *(f"{name}=={version}" for name, version in pins.items()),
            ],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            reason = re.search(r"^ERROR: (No matching distribution.*)$", done.stderr, re.MULTILINE)
            if reason is None:
                sys.exit(done.stderr)
            print(f"Left out: Python {python}, {platform}: {reason[1]}")
            return None
        chosen = json.loads(report.read_text("utf-8"))["install"]
    return {
        canonicalize_name(one["metadata"]["name"]): one["download_info"]["archive_info"]["hashes"][
            "sha256"
        ]
        for one in chosen
    }


def format_file(pins: Mapping[str, str], found: Mapping[tuple[str, str], dict[str, str]]) -> str:
    """Return the file for the hashes of each target (platform and Python)."""
    targets = [
        f"#   {platform}: CPython {', '.join(python for _, python in group)}"
        for platform, group in itertools.groupby(found, key=lambda target: target[0])
    ]
    head = _HEAD.format(extras=", ".join(EXTRAS), targets="\n".join(targets), name=HASHES.name)
    return head + "".join(
        _format_pin(name, version, {hashes[name] for hashes in found.values()})
        for name, version in pins.items()
    )


def _format_pin(name: str, version: str, hashes: Iterable[str]) -> str:
    lines = [f"{name}=={version}", *(f"    --hash=sha256:{one}" for one in sorted(hashes))]
    return " \\\n".join(lines) + "\n"


def check_file(path: Path = HASHES) -> None:
    """Download the packages for this interpreter, and let pip compare their hashes."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet"),
                *("--disable-pip-version-check", "--require-hashes", "--only-binary", ":all:"),
                *("--no-deps", "--dest", directory, "--requirement", str(path)),
            ],
            check=True,
        )


def main() -> None:
    """Write the file, and check it on this platform."""
    pins = list_pins()
    found = {
        (platform, python): hashes
        for platform, python in itertools.product(PLATFORMS, PYTHONS)
        if (hashes := find_hashes(pins, python, platform)) is not None
    }
    if not found:
        sys.exit("No target has wheels of all packages; nothing was written.")
    HASHES.write_text(format_file(pins, found), "utf-8")
    check_file()
    print(f"{HASHES.name}: {len(pins)} packages, {len(found)} targets")


if __name__ == "__main__":
    main()
