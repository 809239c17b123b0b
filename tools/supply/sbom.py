"""Write a bill of materials (CycloneDX 1.6): the packages that shoal needs at run time.

``make sbom`` calls it and writes ``sbom.cdx.json``, which is not part of the repository. The
content comes from the metadata of this environment: the same environment gives the same bytes.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import uuid
from pathlib import Path
from typing import Any

from tools.supply.packages import Package, find_packages

_LICENSE_CLASSIFIER = "License :: "
_NAMESPACE = uuid.UUID("0d1b6cf5-6d0f-5a3c-9c7e-3f5a5d0f7b11")


def make_sbom(root: str = "shoal[all]") -> dict[str, Any]:
    """Return the bill of materials of a requirement; its first package is the product."""
    packages = find_packages([root])
    product, *_ = root.partition("[")
    body = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _describe_package(packages[product], "application")},
        "components": [
            _describe_package(package, "library")
            for package in packages.values()
            if package.name != product
        ],
        "dependencies": [
            {
                "ref": _make_purl(package),
                "dependsOn": [_make_purl(packages[name]) for name in package.needs],
            }
            for package in packages.values()
        ],
    }
    return body | {"serialNumber": uuid.uuid5(_NAMESPACE, json.dumps(body)).urn}


def _make_purl(package: Package) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"


def _describe_package(package: Package, kind: str) -> dict[str, Any]:
    metadata = importlib.metadata.metadata(package.name)
    described: dict[str, Any] = {
        "type": kind,
        "bom-ref": _make_purl(package),
        "name": package.name,
        "version": package.version,
        "purl": _make_purl(package),
    }
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier") or []
        if line.startswith(_LICENSE_CLASSIFIER)
    ]
    if expressions := metadata.get_all("License-Expression"):
        described["licenses"] = [{"expression": one} for one in expressions]
    elif classifiers:
        described["licenses"] = [{"license": {"name": name}} for name in classifiers]
    return described


def main() -> None:
    """Write the bill of materials to the path in the argument."""
    (target,) = sys.argv[1:]
    sbom = make_sbom()
    Path(target).write_text(json.dumps(sbom, indent=2) + "\n", "utf-8")
    print(f"{target}: {len(sbom['components'])} packages")


if __name__ == "__main__":
    main()
