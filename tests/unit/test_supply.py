"""Supply chain: the hashes for deployments, and the bill of materials."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools.supply import hashes, sbom
from tools.supply.hashes import HASHES, PLATFORMS, find_hashes, format_file, list_pins, read_pins
from tools.supply.packages import find_packages
from tools.supply.sbom import make_sbom


def test_hashes_cover_the_pinned_packages_of_a_coordinator() -> None:
    """``make hashes`` writes the file again."""
    assert read_pins(HASHES.read_text("utf-8")) == list_pins()


def test_each_pin_has_hashes_and_no_address() -> None:
    head, *pins = re.split(r"^(?=[a-z])", HASHES.read_text("utf-8"), flags=re.MULTILINE)
    assert all(line.startswith("#") for line in head.splitlines()) and "CPython 3.11" in head
    for pin in pins:
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n", pin), pin
    assert "://" not in HASHES.read_text("utf-8")


def test_pins_without_a_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "read_pins", lambda text: {})
    with pytest.raises(SystemExit, match=r"constraints.txt has no version of .*starlette"):
        list_pins()


def run_pip(monkeypatch: pytest.MonkeyPatch, code: int, report: Any, said: str = "") -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        Path(command[command.index("--report") + 1]).write_text(json.dumps(report))
        return subprocess.CompletedProcess(command, code, "", said)

    monkeypatch.setattr(subprocess, "run", run)


def test_find_hashes_reads_the_report_of_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = next(iter(PLATFORMS))
    one = {"metadata": {"name": "A_b"}, "download_info": {"archive_info": {"hashes": {}}}}
    one["download_info"]["archive_info"]["hashes"]["sha256"] = "f" * 64  # type: ignore[index]
    run_pip(monkeypatch, 0, {"install": [one]})
    assert find_hashes({"a-b": "1"}, "3.11", platform) == {"a-b": "f" * 64}
    run_pip(monkeypatch, 1, {}, "ERROR: No matching distribution found for a-b==1\n")
    assert find_hashes({"a-b": "1"}, "3.11", platform) is None
    run_pip(monkeypatch, 1, {}, "ERROR: no network")
    with pytest.raises(SystemExit, match="no network"):
        find_hashes({"a-b": "1"}, "3.11", platform)


def test_file_lists_targets_and_each_hash_once() -> None:
    found = {("X", "3.11"): {"a": "1", "b": "2"}, ("X", "3.12"): {"a": "1", "b": "3"}}
    text = format_file({"a": "1.0", "b": "2.0"}, found)
    assert "#   X: CPython 3.11, 3.12\n" in text
    assert text.endswith(
        "a==1.0 \\\n    --hash=sha256:1\nb==2.0 \\\n    --hash=sha256:2 \\\n    --hash=sha256:3\n"
    )


def test_packages_follow_extras_and_markers() -> None:
    assert "socksio" in find_packages(["httpx2[socks]"])
    assert "socksio" not in find_packages(["httpx2"])
    with pytest.raises(SystemExit, match="no-such-package is not installed"):
        find_packages(["no-such-package"])
    old = {"python_version": "3.12", "python_full_version": "3.12.3"}
    new = {"python_version": "3.14", "python_full_version": "3.14.3"}
    assert "typing-extensions" in find_packages(["starlette"], [old, new])["starlette"].needs
    assert "typing-extensions" not in find_packages(["starlette"], [new])["starlette"].needs


def test_sbom_has_the_required_fields_and_every_runtime_package() -> None:
    made = make_sbom()
    assert (made["bomFormat"], made["specVersion"], made["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", made["serialNumber"])
    product = made["metadata"]["component"]
    assert (product["name"], product["type"]) == ("shoal", "application")
    packages = find_packages(["shoal[all]"])
    assert {one["name"] for one in made["components"]} == set(packages) - {"shoal"}
    for one in made["components"]:
        assert one["version"] == importlib.metadata.version(one["name"])
        assert one["purl"] == f"pkg:pypi/{one['name']}@{one['version']}"
    refs = [one["bom-ref"] for one in [product, *made["components"]]]
    assert len(set(refs)) == len(refs)
    assert {one["ref"] for one in made["dependencies"]} == set(refs)
    assert {ref for one in made["dependencies"] for ref in one["dependsOn"]} <= set(refs)
    assert {"numpy", "cryptography", "uvicorn", "mpyc", "numba"} <= set(packages)
    assert "pytest" not in packages


def test_sbom_of_the_same_environment_is_the_same() -> None:
    assert make_sbom() == make_sbom()
    assert make_sbom("shoal")["serialNumber"] != make_sbom()["serialNumber"]


def test_sbom_is_valid_under_the_schema_of_cyclonedx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cyclonedx", reason="cyclonedx-python-lib is not installed: make check")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    monkeypatch.setattr("sys.argv", ["sbom", str(tmp_path / "sbom.json")])
    sbom.main()
    written = (tmp_path / "sbom.json").read_text("utf-8")
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(written) is None
    # A mutant: the schema knows no component without a type.
    assert validator.validate_str(written.replace('"type": "library",', "", 1)) is not None
