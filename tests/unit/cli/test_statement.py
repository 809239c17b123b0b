"""`shoal statement`: a page and a record, both or neither."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.cli.main import run
from shoal.cli.statement import statement
from shoal.errors import ShoalError
from shoal.report import make_registry_record
from shoal.report.statement import make_draft_page
from shoal.study.loader import load_study
from shoal.study.manifest import Manifest
from shoal.study.starters import STARTER_PROTOCOLS, read_starter


def write_study(tmp_path: Path, protocol: str = "sdq") -> Path:
    path = tmp_path / "study.toml"
    path.write_text(read_starter(protocol))
    return path


@pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
def test_statement_page_is_written_next_to_the_study(
    protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_study(tmp_path, protocol)
    assert run(["statement", str(path)]) == 0
    manifest = Manifest(load_study(path))
    assert (tmp_path / "statement.html").read_text("utf-8") == make_draft_page(manifest)
    printed = capsys.readouterr().out
    assert manifest.short_digest in printed and f"next      shoal serve {path}" in printed
    assert sorted(one.name for one in tmp_path.iterdir()) == ["statement.html", "study.toml"]
    statement(path)


def test_statement_writes_record_and_lists_missing_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_study(tmp_path)
    statement(path, out=tmp_path / "page.html", registry=tmp_path / "record.json")
    assert (
        "fill in   deployment.basic.data_curators.0.data_curator_type, " in capsys.readouterr().out
    )
    assert json.loads((tmp_path / "record.json").read_text("utf-8")) == make_registry_record(
        Manifest(load_study(path))
    )
    statement(path, json=True)
    told = json.loads(capsys.readouterr().out)
    assert (
        told["record"] == make_registry_record(Manifest(load_study(path)))
        and told["registry"] is None
    )


def test_statement_rejects_bad_input_and_writes_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_study(tmp_path)
    taken = tmp_path / "taken.json"
    taken.write_text("{}")
    for how, code in (
        ({"registry": taken}, "NEW-001"),
        ({"registry": tmp_path / "no" / "record.json"}, "NEW-001"),
        ({"out": path}, "REPORT-003"),
        ({"out": path, "registry": tmp_path / "record.json"}, "REPORT-003"),
        (
            {"out": tmp_path / "no" / "page.html", "registry": tmp_path / "record.json"},
            "REPORT-003",
        ),
    ):
        with pytest.raises(ShoalError) as caught:
            statement(path, **how)
        assert caught.value.code == code
    assert path.read_text() == read_starter("sdq") and taken.read_text() == "{}"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["study.toml", "taken.json"]
    assert run(["statement", str(tmp_path / "none.toml")]) == 3
    assert "SPEC-001" in capsys.readouterr().err


def test_page_and_record_equal_those_of_the_served_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_study(tmp_path, "anonml")
    manifest = Manifest(load_study(path))
    statement(path, json=True)
    told = json.loads(capsys.readouterr().out)
    record = json.dumps(told["record"])
    assert "a token without your name" in record and "ticket" not in record
    assert (
        told["record"]["url_slug"] == f"shoal-{manifest.short_digest}"
        and f"Study: {manifest.short_digest}." in record
    )
    assert (
        told["digest"] == manifest.digest.hex()
        and "a coordinator adds its keys" in told["digest_remark"]
    )
    assert "digest    of the study without keys" in _print_statement(path, capsys)
    assert run(["statement", str(path), "--tickets"]) == 0
    printed = capsys.readouterr().out
    assert "without keys" not in printed and f"next      shoal serve {path} --tickets" in printed
    assert (tmp_path / "statement.html").read_text("utf-8") == make_draft_page(
        manifest, tickets=True
    )
    statement(path, tickets=True, json=True)
    assert json.loads(capsys.readouterr().out)["record"] == make_registry_record(manifest)


def _print_statement(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    statement(path)
    return capsys.readouterr().out
