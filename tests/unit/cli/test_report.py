"""`shoal report`: reads outputs of other commands, and writes one page atomically."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from shoal.cli import report as module
from shoal.cli.main import run
from shoal.cli.report import report
from shoal.errors import ShoalError
from tests.unit.report.cases import (
    check_inert,
    make_audit_document,
    make_comparison_document,
    make_point,
    make_result_document,
    make_run_document,
)


def write_document(directory: Path, name: str, document: dict[str, Any]) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(json.dumps(document))
    return directory


def read_page(path: Path) -> str:
    text = path.read_text("utf-8")
    check_inert(text)
    return text


def catch_error(*runs: Path, **how: Any) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        report(*runs, **how)
    return caught.value


def test_report_of_a_run_is_written_to_its_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_document(tmp_path / "run", "run.json", make_run_document())
    assert run(["report", str(directory)]) == 0
    printed = capsys.readouterr().out
    assert (
        f"wrote     {directory / 'report.html'}\n" in printed
        and "next      shoal statement study.toml" in printed
    )
    assert "Who finishes the course?" in read_page(directory / "report.html")
    assert sorted(path.name for path in directory.iterdir()) == ["report.html", "run.json"]


def test_report_of_a_file_replaces_an_earlier_report(tmp_path: Path) -> None:
    directory = write_document(tmp_path / "cmp", "compare.json", make_comparison_document())
    report(directory / "compare.json")
    first = (directory / "report.html").read_bytes()
    write_document(directory, "compare.json", make_comparison_document(title="Another"))
    report(directory)
    assert (
        "Another" in read_page(directory / "report.html")
        and (directory / "report.html").read_bytes() != first
    )


def test_report_combines_several_runs_and_audits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write_document(
        tmp_path / "one", "run.json", make_run_document(points=[make_point(1.0, 0.75)])
    )
    two = write_document(
        tmp_path / "two", "run.json", make_run_document(points=[make_point(2.0, 0.8125)])
    )
    write_document(two, "audit.json", make_audit_document())
    both = write_document(tmp_path / "both", "run.json", make_run_document("sdq"))
    write_document(both, "compare.json", make_comparison_document())
    extra = write_document(
        tmp_path / "extra", "mechanism.json", make_audit_document(title="", mechanism="rappor")
    )
    out = tmp_path / "all.html"
    report(one, two, both, out=out, audit=[extra / "mechanism.json"], json=True)
    told = json.loads(capsys.readouterr().out)
    assert (
        told["report"] == str(out)
        and told["opened"] is False
        and told["bytes"] == out.stat().st_size
    )
    assert told["read"] == [
        str(path)
        for path in (
            one / "run.json",
            two / "run.json",
            both / "run.json",
            both / "compare.json",
            extra / "mechanism.json",
            two / "audit.json",
        )
    ]
    page = check_inert(out.read_text("utf-8"))
    assert "across-curve" in page.sections and "rappor" in page.text
    assert [section for section in page.sections if section.endswith("audit")] == [
        "part-1-audit",
        "part-2-audit",
    ]
    assert not (one / "report.html").exists()


def test_report_accepts_a_model_fetched_by_join(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_document(tmp_path / "joined", "model.json", make_result_document("sdq"))
    report(directory)
    assert f"next      shoal model show {directory / 'model.json'}" in capsys.readouterr().out
    assert "It is not known how well the model predicts" in read_page(directory / "report.html")


def test_report_draws_tree_of_a_run_and_ignores_a_broken_one(tmp_path: Path) -> None:
    document = make_run_document(
        "sdq", points=[make_point(1.0, 0.8, tree="age?\n└─ any → no", settings={"depth": 4.0})]
    )
    directory = write_document(tmp_path / "run", "run.json", document)
    report(directory)
    assert "└─ any → no" in read_page(directory / "report.html")
    write_document(
        directory / "depth=4",
        "model.json",
        {"simulated": True, "model": make_result_document("sdq")["model"]},
    )
    report(directory)
    assert "A decision tree for" in read_page(directory / "report.html")
    (directory / "depth=4" / "model.json").write_text(
        '{"simulated": true, "model": {"kind": "tree"}}'
    )
    report(directory)
    assert "└─ any → no" in read_page(directory / "report.html")


@pytest.mark.parametrize(("display", "is_open"), [("", False), (":0", True)])
def test_report_opens_a_browser_only_with_a_display(
    display: str,
    is_open: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address) or True))
    monkeypatch.setattr(module.sys, "platform", "linux")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", display)
    directory = write_document(tmp_path / "run", "run.json", make_run_document())
    report(directory, open_=True)
    assert opened == ([(directory / "report.html").as_uri()] if is_open else [])
    assert ("(opened)" if is_open else "there is no display") in capsys.readouterr().out


def test_report_rejects_unreadable_documents_and_writes_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.dumps(make_run_document())
    later = make_run_document(versions={"shoal": "9.0.0"})
    later["study"]["spec"] = 2
    for i, (content, code, said) in enumerate(
        [
            (whole[: len(whole) // 2], "REPORT-001", "truncated"),
            ("age,town\n31,x\n", "REPORT-001", "is not JSON."),
            ("[" * 100_000, "REPORT-001", "is not JSON"),
            ("\udcff", "REPORT-001", "is not JSON"),
            ("[1]", "REPORT-001", "not an object"),
            ('{"some": 1}', "REPORT-001", "is not a run"),
            (json.dumps(later), "REPORT-002", "does not have the format"),
            (whole.replace('"seed": 7', '"seed": NaN'), "REPORT-002", "does not have the format"),
        ]
    ):
        directory = tmp_path / str(i)
        directory.mkdir()
        (directory / "run.json").write_bytes(content.encode("utf-8", "surrogateescape"))
        error = catch_error(directory)
        assert (
            (error.code, error.exit_code) == (code, 3)
            and said in error.what
            and "run.json" in error.what
        )
        assert [path.name for path in directory.iterdir()] == ["run.json"]
    assert capsys.readouterr().out == ""


def test_report_of_a_table_names_the_accepted_files(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("age,town\n31,x\n")
    error = catch_error(tmp_path / "p.csv")
    assert error.what.endswith("p.csv is not JSON.") and "truncated" not in str(error)
    assert error.why is not None and all(
        name in error.why for name in ("run.json", "compare.json", "model.json")
    )


def test_report_rejects_missing_and_unusable_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert catch_error(tmp_path / "nowhere").code == "REPORT-001"
    assert catch_error(tmp_path).what.endswith("has no run.json and no compare.json.")
    assert catch_error(Path("a\0b")).code == "REPORT-001"
    assert catch_error(tmp_path / ("x" * 300)).code == "REPORT-001"
    assert run(["report"]) == 2 and "USAGE-001" in capsys.readouterr().err
    directory = write_document(tmp_path / "run", "run.json", make_run_document())
    assert catch_error(directory, audit=[directory / "run.json"]).what.endswith(
        "run.json is not an audit."
    )
    assert catch_error(directory, audit=[tmp_path / "none.json"]).code == "REPORT-001"
    assert [path.name for path in directory.iterdir()] == ["run.json"]


def test_report_rejects_files_above_the_size_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    assert (
        "larger than 100 bytes"
        in catch_error(write_document(tmp_path / "run", "run.json", make_run_document())).what
    )


def test_report_overwrites_only_reports(tmp_path: Path) -> None:
    directory = write_document(tmp_path / "run", "run.json", make_run_document())
    other = tmp_path / "notes.html"
    other.write_text("<!doctype html>\n<p>mine")
    for target in (directory / "run.json", other, tmp_path):
        before = target.read_bytes() if target.is_file() else None
        error = catch_error(directory, out=target)
        assert (error.code, error.exit_code) == ("REPORT-003", 2) and str(target) in error.what
        assert before is None or target.read_bytes() == before
    for target in (
        tmp_path / "no" / "report.html",
        Path("/proc/nobody/report.html"),
        tmp_path / ("x" * 300),
        Path("a\0b"),
    ):
        error = catch_error(directory, out=target)
        assert (error.code, error.exit_code) == ("REPORT-003", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.html", "run"]


def test_interruption_keeps_the_earlier_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_document(tmp_path / "run", "run.json", make_run_document())
    report(directory)
    before = (directory / "report.html").read_bytes()

    def interrupted(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        report(directory)
    assert sorted(path.name for path in directory.iterdir()) == ["report.html", "run.json"]
    assert (directory / "report.html").read_bytes() == before


def test_report_of_unparsable_command_suggests_model_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report(
        write_document(
            tmp_path / "run", "run.json", make_run_document(command="shoal simulate 'unclosed")
        )
    )
    assert "next      shoal model show " in capsys.readouterr().out
