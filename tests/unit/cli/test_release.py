"""`shoal release`: what a reader is told of a release, and what a holder of its own rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from release_cases import NORTH, SOUTH, release_of, study_of
from shoal.cli.main import run
from shoal.entropy import SeededEntropy
from shoal.releases.artefact import DOCUMENT, write
from shoal.releases.comparison import NOTICE
from shoal.study.templates import example_csv


@pytest.fixture
def release(tmp_path: Path) -> Path:
    write(tmp_path / "it", release_of(), "north", NORTH, inferred=False)
    return tmp_path / "it"


@pytest.fixture
def real(tmp_path: Path) -> Path:
    (tmp_path / "real.csv").write_text(example_csv(study_of(), 300, SeededEntropy("cli")))
    return tmp_path / "real.csv"


def test_check_prints_label_signer_quality_and_verdict(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["release", "check", str(release), "--key", NORTH.public.hex()]) == 0
    printed = capsys.readouterr().out
    assert f"release   {release}: data.csv with 500 rows\n" in printed and "by the signer's word\n" in printed
    assert "PRIVACY LABEL" in printed and "signer    north\n" in printed and f"key       {NORTH.public.hex()}" in printed
    assert printed.count("quality   ") > 5 and "verdict   valid, and signed with the key that you gave" in printed
    assert printed.endswith(f"next      shoal release compare {release} --data rows.csv\n") and "WARNING" not in printed


def test_without_a_key_nothing_is_known_of_who_signed(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["release", "check", str(release)]) == 0
    printed = capsys.readouterr().out
    assert "which proves nothing about who that is" in printed
    assert printed.endswith(f"next      shoal release check {release} --key HEX\n")


def test_check_tells_programs_the_same(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, is_expected in (([], False), (["--key", NORTH.public.hex()], True)):
        assert run(["release", "check", str(release), "--json", *arguments]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["signer"] == {"name": "north", "key": NORTH.public.hex(), "is_expected": is_expected}
        assert (told["file"], told["rows"]) == ("data.csv", 500) and told["simulation"] is False and told["label"]["epsilon"] == 1
        assert told["quality"][0]["what"] == "rows" and told["study"] == release_of().manifest.digest.hex()


def test_a_simulation_is_announced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "it", release_of(is_simulated=True), "north", NORTH, inferred=False)
    assert run(["release", "check", str(tmp_path / "it")]) == 0
    assert "WARNING   a simulation: nothing was protected" in capsys.readouterr().out


def test_a_fault_is_the_fault_of_the_other_side(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["release", "check", str(release), "--key", SOUTH.public.hex()]) == 7
    assert capsys.readouterr().err.startswith("REL-004  ")
    (release / DOCUMENT).write_bytes(b"{}")
    assert run(["release", "check", str(release), "--json"]) == 7
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "REL-004"
    assert run(["release", "compare", str(release), "--data", "none.csv"]) == 7


@pytest.mark.parametrize("key", ["", "ab", "x" * 64, "é" * 64, " " * 64, "00" * 33])
def test_a_key_is_64_digits(key: str, release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["release", "check", str(release), "--key", key]) == 2
    assert capsys.readouterr().err.startswith("USAGE-001  --key")


def test_compare_prints_the_warning_first(release: Path, real: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["release", "compare", str(release), "--data", str(real)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(NOTICE) and "rows released: 500 (real rows: 300)" in printed
    assert printed.endswith(f"next      shoal release check {release}\n")
    assert run(["release", "compare", str(release), "--data", str(real), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["notice"] == NOTICE and told["findings"][0]["beside"] == {"real rows": 300}


def test_compare_writes_a_file_and_says_nothing_of_it(
    release: Path, real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["release", "compare", str(release), "--data", str(real), "--out", str(tmp_path / "mine.txt")]) == 0
    printed = capsys.readouterr().out
    assert "rows released" not in printed and NOTICE in printed
    assert (tmp_path / "mine.txt").read_text().startswith(NOTICE)
    rows = real.read_bytes()
    assert run(["release", "compare", str(release), "--data", str(real), "--out", str(real)]) == 2
    assert capsys.readouterr().err.startswith("REL-010  ") and real.read_bytes() == rows
    assert run(["release", "compare", str(release), "--data", str(real), "--out", str(release / "mine.txt")]) == 2
    assert capsys.readouterr().err.startswith("REL-010  ") and not (release / "mine.txt").exists()
