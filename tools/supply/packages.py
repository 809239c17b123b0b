"""Packages that shoal needs at run time, from the metadata of this environment.

`tools.supply.hashes` and `tools.supply.sbom` call it.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE: Mapping[str, str] = {}
"""The values of markers in this environment."""


@dataclass(frozen=True)
class Package:
    """An installed package and the names of the packages that it needs."""

    name: str
    version: str
    needs: tuple[str, ...]


def find_packages(
    roots: Iterable[str], targets: Sequence[Mapping[str, str]] = (HERE,)
) -> dict[str, Package]:
    """Return the packages of some requirements, and all that they need, by normalised name.

    Parameters
    ----------
    targets
        Values of markers that differ from those of this environment. A package that one of the
        targets needs is in the result, and must be installed here.

    Examples
    --------
    >>> find_packages(["jinja2>=3"])["jinja2"].needs
    ('markupsafe',)
    """
    found: dict[str, Package] = {}
    extras: dict[str, set[str]] = {}
    waiting = [Requirement(root) for root in roots]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found and requirement.extras <= extras[name]:
            continue
        wanted = extras.setdefault(name, set())
        wanted |= requirement.extras
        distribution = _find_distribution(name)
        environments = [{**target, "extra": extra} for target in targets for extra in ("", *wanted)]
        needs = list(_list_needs(distribution.requires or [], environments))
        names = sorted({canonicalize_name(need.name) for need in needs} - {name})
        found[name] = Package(name, distribution.version, tuple(names))
        waiting += needs
    return dict(sorted(found.items()))


def _find_distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        sys.exit(f"{name} is not installed here. Run make check once, which builds .venv.")


def _list_needs(
    requirements: Iterable[str], environments: Sequence[dict[str, str]]
) -> Iterator[Requirement]:
    """Yield the requirements that have no marker, or one that holds in an environment."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            yield requirement
