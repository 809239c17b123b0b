"""`shoal release`: verification of a release, and comparison with real rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.cli.main import run
from shoal.entropy import SeededEntropy
from shoal.releases.artifact import DOCUMENT, write_signed_release
from shoal.releases.comparison import NOTICE
from shoal.study.starters import make_example_csv
from tests.support.releases import NORTH, SOUTH, make_release, make_study


@pytest.fixture
def release(tmp_path: Path) -> Path:
    write_signed_release(tmp_path / "it", make_release(), "north", NORTH, is_inferred=False)
    return tmp_path / "it"


@pytest.fixture
def real(tmp_path: Path) -> Path:
    (tmp_path / "real.csv").write_text(make_example_csv(make_study(), 300, SeededEntropy("cli")))
    return tmp_path / "real.csv"


def test_check_prints_label_signer_quality_and_verdict(
    release: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["release", "check", str(release), "--key", NORTH.public_key.hex()]) == 0
    printed = capsys.readouterr().out
    assert (
        f"release   {release}: data.csv with 500 rows\n" in printed
        and "by the signer's word\n" in printed
    )
    assert (
        "PRIVACY LABEL" in printed
        and "signer    north\n" in printed
        and f"key       {NORTH.public_key.hex()}" in printed
    )
    assert (
        printed.count("quality   ") > 5
        and "verdict   valid, and signed with the given key" in printed
    )
    assert (
        printed.endswith(f"next      shoal release compare {release} --data rows.csv\n")
        and "WARNING" not in printed
    )


def test_check_without_key_does_not_prove_the_signer(
    release: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["release", "check", str(release)]) == 0
    printed = capsys.readouterr().out
    assert "which does not prove who signed" in printed
    assert printed.endswith(f"next      shoal release check {release} --key HEX\n")


def test_check_json_has_the_same_content(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, is_expected in (([], False), (["--key", NORTH.public_key.hex()], True)):
        assert run(["release", "check", str(release), "--json", *arguments]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["signer"] == {
            "name": "north",
            "key": NORTH.public_key.hex(),
            "is_expected": is_expected,
        }
        assert (
            (told["file"], told["rows"]) == ("data.csv", 500)
            and told["simulation"] is False
            and told["label"]["epsilon"] == 1
        )
        assert (
            told["quality"][0]["what"] == "rows"
            and told["study"] == make_release().manifest.digest.hex()
        )


def test_check_warns_of_a_simulated_release(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_signed_release(
        tmp_path / "it", make_release(is_simulated=True), "north", NORTH, is_inferred=False
    )
    assert run(["release", "check", str(tmp_path / "it")]) == 0
    assert "WARNING   a simulation: it protects nothing" in capsys.readouterr().out


def test_invalid_release_has_exit_code_7(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["release", "check", str(release), "--key", SOUTH.public_key.hex()]) == 7
    assert capsys.readouterr().err.startswith("REL-004  ")
    (release / DOCUMENT).write_bytes(b"{}")
    assert run(["release", "check", str(release), "--json"]) == 7
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "REL-004"
    assert run(["release", "compare", str(release), "--data", "none.csv"]) == 7


@pytest.mark.parametrize("key", ["", "ab", "x" * 64, "é" * 64, " " * 64, "00" * 33])
def test_check_rejects_keys_that_are_not_64_hex_digits(
    key: str, release: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["release", "check", str(release), "--key", key]) == 2
    assert capsys.readouterr().err.startswith("USAGE-001  --key")


def test_compare_prints_the_warning_first(
    release: Path, real: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["release", "compare", str(release), "--data", str(real)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(NOTICE) and "rows released: 500 (real rows: 300)" in printed
    assert printed.endswith(f"next      shoal release check {release}\n")
    assert run(["release", "compare", str(release), "--data", str(real), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["notice"] == NOTICE and told["findings"][0]["beside"] == {"real rows": 300}


def test_compare_writes_findings_to_the_file_only(
    release: Path, real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(
            [
                "release",
                "compare",
                str(release),
                "--data",
                str(real),
                "--out",
                str(tmp_path / "mine.txt"),
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "rows released" not in printed and NOTICE in printed
    assert (tmp_path / "mine.txt").read_text().startswith(NOTICE)
    rows = real.read_bytes()
    assert run(["release", "compare", str(release), "--data", str(real), "--out", str(real)]) == 2
    assert capsys.readouterr().err.startswith("REL-010  ") and real.read_bytes() == rows
    assert (
        run(
            [
                "release",
                "compare",
                str(release),
                "--data",
                str(real),
                "--out",
                str(release / "mine.txt"),
            ]
        )
        == 2
    )
    assert capsys.readouterr().err.startswith("REL-010  ") and not (release / "mine.txt").exists()
