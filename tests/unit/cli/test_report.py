"""`shoal report`: reads what other commands have written, writes one page, whole or not at all, and over nothing else."""

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
from unit.report.cases import audit_document, check_inert, compared_document, point, result_document, run_document


def written(directory: Path, name: str, document: dict[str, Any]) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(json.dumps(document))
    return directory


def text_of(path: Path) -> str:
    text = path.read_text("utf-8")
    check_inert(text)
    return text


def refusal(*runs: Path, **how: Any) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        report(*runs, **how)
    return caught.value


def test_a_run_s_report_is_in_its_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = written(tmp_path / "run", "run.json", run_document())
    assert run(["report", str(directory)]) == 0
    printed = capsys.readouterr().out
    assert f"wrote     {directory / 'report.html'}\n" in printed and "next      shoal statement study.toml" in printed
    assert "Who finishes the course?" in text_of(directory / "report.html")
    assert sorted(path.name for path in directory.iterdir()) == ["report.html", "run.json"]


def test_a_file_s_report_is_beside_it_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    directory = written(tmp_path / "cmp", "compare.json", compared_document())
    report(directory / "compare.json")
    first = (directory / "report.html").read_bytes()
    written(directory, "compare.json", compared_document(title="Another"))
    report(directory)
    assert "Another" in text_of(directory / "report.html") and (directory / "report.html").read_bytes() != first


def test_several_runs_and_an_audit_are_one_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = written(tmp_path / "one", "run.json", run_document(points=[point(1.0, 0.75)]))
    two = written(tmp_path / "two", "run.json", run_document(points=[point(2.0, 0.8125)]))
    written(two, "audit.json", audit_document())
    both = written(tmp_path / "both", "run.json", run_document("sdq"))
    written(both, "compare.json", compared_document())
    extra = written(tmp_path / "extra", "mechanism.json", audit_document(title="", mechanism="rappor"))
    out = tmp_path / "all.html"
    report(one, two, both, out=out, audit=[extra / "mechanism.json"], json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(out) and told["opened"] is False and told["bytes"] == out.stat().st_size
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
    assert [section for section in page.sections if section.endswith("audit")] == ["part-1-audit", "part-2-audit"]
    assert not (one / "report.html").exists()


def test_what_join_has_fetched_is_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = written(tmp_path / "joined", "model.json", result_document("sdq"))
    report(directory)
    assert f"next      shoal model show {directory / 'model.json'}" in capsys.readouterr().out
    assert "How well the model predicts is not known" in text_of(directory / "report.html")


def test_the_tree_beside_a_run_is_drawn_and_a_broken_one_is_left_alone(tmp_path: Path) -> None:
    document = run_document("sdq", points=[point(1.0, 0.8, tree="age?\n└─ any → no", settings={"depth": 4.0})])
    directory = written(tmp_path / "run", "run.json", document)
    report(directory)
    assert "└─ any → no" in text_of(directory / "report.html")
    written(directory / "depth=4", "model.json", {"simulated": True, "model": result_document("sdq")["model"]})
    report(directory)
    assert "A decision tree for" in text_of(directory / "report.html")
    (directory / "depth=4" / "model.json").write_text('{"simulated": true, "model": {"kind": "tree"}}')
    report(directory)
    assert "└─ any → no" in text_of(directory / "report.html")


@pytest.mark.parametrize(("display", "is_open"), [("", False), (":0", True)])
def test_a_browser_is_opened_only_where_there_is_a_display(
    display: str, is_open: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address) or True))
    monkeypatch.setattr(module.sys, "platform", "linux")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", display)
    directory = written(tmp_path / "run", "run.json", run_document())
    report(directory, open_=True)
    assert opened == ([(directory / "report.html").as_uri()] if is_open else [])
    assert ("(opened)" if is_open else "there is no display") in capsys.readouterr().out


def test_what_cannot_be_read_gets_a_sentence_and_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = json.dumps(run_document())
    later = run_document(versions={"shoal": "9.0.0"})
    later["study"]["spec"] = 2
    for i, (content, code, said) in enumerate(
        [
            (whole[: len(whole) // 2], "REPORT-001", "cut short"),
            ("age,town\n31,x\n", "REPORT-001", "is not JSON."),
            ("[" * 100_000, "REPORT-001", "is not JSON"),
            ("\udcff", "REPORT-001", "is not JSON"),
            ("[1]", "REPORT-001", "no object"),
            ('{"some": 1}', "REPORT-001", "neither a run"),
            (json.dumps(later), "REPORT-002", "is not in the form"),
            (whole.replace('"seed": 7', '"seed": NaN'), "REPORT-002", "is not in the form"),
        ]
    ):
        directory = tmp_path / str(i)
        directory.mkdir()
        (directory / "run.json").write_bytes(content.encode("utf-8", "surrogateescape"))
        error = refusal(directory)
        assert (error.code, error.exit_code) == (code, 3) and said in error.what and "run.json" in error.what
        assert [path.name for path in directory.iterdir()] == ["run.json"]
    assert capsys.readouterr().out == ""


def test_a_table_is_told_what_a_report_is_made_of(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("age,town\n31,x\n")
    error = refusal(tmp_path / "p.csv")
    assert error.what.endswith("p.csv is not JSON.") and "cut short" not in str(error)
    assert error.why is not None and all(name in error.why for name in ("run.json", "compare.json", "model.json"))


def test_missing_and_unusable_names_get_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(tmp_path / "nowhere").code == "REPORT-001"
    assert refusal(tmp_path).what.endswith("holds neither run.json nor compare.json.")
    assert refusal(Path("a\0b")).code == "REPORT-001"
    assert refusal(tmp_path / ("x" * 300)).code == "REPORT-001"
    assert run(["report"]) == 2 and "USAGE-001" in capsys.readouterr().err
    directory = written(tmp_path / "run", "run.json", run_document())
    assert refusal(directory, audit=[directory / "run.json"]).what.endswith("run.json is not an audit.")
    assert refusal(directory, audit=[tmp_path / "none.json"]).code == "REPORT-001"
    assert [path.name for path in directory.iterdir()] == ["run.json"]


def test_too_large_a_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    assert "larger than 100 bytes" in refusal(written(tmp_path / "run", "run.json", run_document())).what


def test_nothing_else_is_overwritten(tmp_path: Path) -> None:
    directory = written(tmp_path / "run", "run.json", run_document())
    other = tmp_path / "notes.html"
    other.write_text("<!doctype html>\n<p>mine")
    for target in (directory / "run.json", other, tmp_path):
        before = target.read_bytes() if target.is_file() else None
        error = refusal(directory, out=target)
        assert (error.code, error.exit_code) == ("REPORT-003", 2) and str(target) in error.what
        assert before is None or target.read_bytes() == before
    for target in (tmp_path / "no" / "report.html", Path("/proc/nobody/report.html"), tmp_path / ("x" * 300), Path("a\0b")):
        error = refusal(directory, out=target)
        assert (error.code, error.exit_code) == ("REPORT-003", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.html", "run"]


def test_an_interruption_leaves_the_earlier_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = written(tmp_path / "run", "run.json", run_document())
    report(directory)
    before = (directory / "report.html").read_bytes()

    def interrupted(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        report(directory)
    assert sorted(path.name for path in directory.iterdir()) == ["report.html", "run.json"]
    assert (directory / "report.html").read_bytes() == before


def test_a_command_that_cannot_be_read_leads_to_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(written(tmp_path / "run", "run.json", run_document(command="shoal simulate 'unclosed")))
    assert "next      shoal model show " in capsys.readouterr().out
