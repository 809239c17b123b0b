"""The demonstration in parts: what it shows is true, what is missing is said, and its directory is written whole or not at all."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.cli import hello as command
from shoal.cli import hello_files, hello_population, hello_served
from shoal.cli.hello_children import children, heeding_hang_up, wait_for
from shoal.cli.hello_files import check_target, publish, working_directory
from shoal.cli.hello_person import one_person, person_lines
from shoal.cli.hello_population import compared_lines, csv_of, make_population
from shoal.cli.hello_served import serve_once, served_lines
from shoal.cli.hello_view import Stage
from shoal.cli.main import run
from shoal.cli.new import write_directory
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.study.load import load
from shoal.tables import read


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own directory, in which a user's ledger would lie."""
    monkeypatch.setenv("SHOAL_LEDGER", str(tmp_path / "mine.db"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no extra is installed, so that only the first step is shown; and few people, for a quick one."""
    monkeypatch.setattr(command, "_NEEDED", dict.fromkeys(command._NEEDED, ("a module that nobody has",)))
    monkeypatch.setattr(hello_population, "ROWS", 400)


class TestPerson:
    def test_goes_through_every_state_of_a_ledger(self, home: Path) -> None:
        person = one_person(2.0, SeededEntropy(3), home / "ledger.db")
        assert person["bytes"] == person["retry"] == {"no": "00", "yes": "01"}[person["sent"]]
        assert person["state"] == "sent" and person["event"]["unit"] == "person" and 2 - 1e-9 < person["event"]["epsilon"] <= 2
        words = "\n".join(f"{head} {line}" for head, line in person_lines(person))
        for part in (
            "the truth with chance 88.1 %",
            "at most 88.1 of 100",
            "relation replace, against everyone",
            "spent 2.0 of 4.0 a year",
        ):
            assert part in words

    def test_truth_and_report_differ_as_often_as_is_said(self, home: Path) -> None:
        told = [one_person(1.0, SeededEntropy(i), home / f"{i}.db") for i in range(60)]
        n_true = sum(person["truth"] == person["sent"] for person in told)
        # 44 are expected; the seeds are fixed.
        assert 34 <= n_true <= 54 and {person["truth"] for person in told} == {"no", "yes"}


class TestPopulation:
    def test_its_files_are_a_study_and_rows_that_fit(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hello_population, "ROWS", 4000)
        population = make_population(0.5)
        (home / "study.toml").write_text(population.text)
        (home / "people.csv").write_text(csv_of(population.table))
        study, rows = load(home / "study.toml"), read(home / "people.csv")
        assert study == population.study and study.privacy.epsilon == 0.5 and study.participation.size == 3000
        encoded, labels = study.schema().encode(rows), study.schema().encode_label(rows)
        assert all((encoded[name] == study.schema().encode(population.table)[name]).all() for name in encoded)
        assert (labels == study.schema().encode_label(population.table)).all()

    def test_truth_is_better_than_guessing_and_no_model_is_much_better(self) -> None:
        population = make_population(1.0)
        assert population.guessing + 0.08 < population.truth < 0.8
        unseen = population.unseen()
        assert np.mean(unseen["sleeps_badly"] == "no") == pytest.approx(population.guessing)

    def test_the_lines_show_each_protocol_with_all_that_an_epsilon_needs(self) -> None:
        scores = {"accuracy": {"value": 0.7, "error": 0.01}}
        entry = {"variant": "plus", "scores": scores, "epsilon": 1.0, "delta": 0.0, "unit": "person", "relation": "replace"}
        crowd = {"epsilon": 0.1, "delta": 1e-6, "adversary": "those who see batches"}
        result = {
            "entries": [
                {**entry, "name": "AnonML plus, local", "trust": "local", "adversary": "everyone", "central": None},
                {**entry, "name": "AnonML plus, shuffled", "trust": "shuffled", "adversary": "everyone", "central": crowd},
                {**entry, "name": "SDQ paper", "variant": "paper", "adversary": "the miner", "central": None},
            ],
            "yardsticks": {"most_common": {"accuracy": 0.6}, "without_privacy": {"accuracy": 0.75}},
            "repeats": 5,
            "rows": {"unseen": 1000},
        }
        words = "\n".join(line for _, line in compared_lines(result, 0.74))
        for part in (
            "guessing the most common answer     60.0 %",
            "AnonML plus, local                  70.0 %   67.2 % to 72.8 %",
            "without privacy                     75.0 %",
            "knowing how they were made          74.0 %",
            "AnonML, local: epsilon 1.0 for one person, replace, against everyone",
            "AnonML, shuffled: also epsilon 0.1, delta 1e-06 for one person, replace, against those who see batches",
            "1 variants as the papers have them",
        ):
            assert part in words
        assert "SDQ" not in words


@pytest.mark.usefixtures("alone")
class TestCommand:
    def test_says_what_is_left_out_and_does_the_rest(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["hello"]) == 0
        printed = capsys.readouterr().out
        for part in (
            "true answer",
            "To see it: pip install 'shoal[learn]'",
            "To see it: pip install 'shoal[serve,anonymous]'",
            "nothing to report on",
            "shoal-hello: study.toml, people.csv",
        ):
            assert part in printed
        assert printed.rstrip().endswith("next      shoal new my-study --protocol anonml --from rows.csv")
        assert sorted(path.name for path in (home / "shoal-hello").iterdir()) == ["hello.json", "people.csv", "study.toml"]
        assert sorted(path.name for path in home.iterdir()) == ["shoal-hello"]

    def test_json_is_one_object_with_the_same(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["hello", "--epsilon", "2", "--out", "there", "--json"]) == 0
        printed = capsys.readouterr()
        told = json.loads(printed.out)
        assert printed.err == "" and told["epsilon"] == 2.0 and told["directory"] == "there" and told["report"] is None
        assert [(one["step"], one.get("fix")) for one in told["left_out"]] == [
            (2, "pip install 'shoal[learn]'"),
            (3, "pip install 'shoal[serve,anonymous]'"),
            (4, None),
        ]
        kept = json.loads((home / "there" / "hello.json").read_text())
        assert kept["made_by"] == "shoal hello" and kept["person"] == told["person"]

    def test_overwrites_its_own_and_nothing_else(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["hello"]) == 0
        assert run(["hello", "--epsilon", "2"]) == 0
        assert load(home / "shoal-hello" / "study.toml").privacy.epsilon == 2.0
        (home / "shoal-hello" / "notes.txt").write_text("mine")
        assert run(["hello"]) == 2
        assert capsys.readouterr().err.startswith("NEW-001") and (home / "shoal-hello" / "notes.txt").read_text() == "mine"

    @pytest.mark.parametrize("epsilon", ["0", "0.09", "4.1", "nan", "-1", "inf", "much"])
    def test_refuses_what_would_show_nothing(self, epsilon: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["hello", "--epsilon", epsilon]) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith("USAGE-001") and printed.out == "" and not list(home.iterdir())

    @pytest.mark.parametrize("epsilon", ["0.1", "4"])
    def test_takes_the_ends_of_its_range(self, epsilon: str) -> None:
        assert run(["hello", "--epsilon", epsilon]) == 0

    @pytest.mark.parametrize("out", ["/proc/x", "file/x", "none/x", "file", "a\0b"])
    def test_says_where_it_cannot_write_before_it_does_anything(self, out: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (home / "file").write_text("mine")
        assert run(["hello", "--out", out]) in (1, 2)
        printed = capsys.readouterr()
        assert printed.err.startswith("NEW-001") and "--out DIR" in printed.err and printed.out == ""
        assert [path.name for path in home.iterdir()] == ["file"]

    def test_says_where_there_is_no_room_for_its_ledgers(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("TMPDIR", "/nowhere")
        monkeypatch.setattr("tempfile.tempdir", "/nowhere")
        assert run(["hello"]) == 1
        assert capsys.readouterr().err.startswith("LEDGER-001") and not list(home.iterdir())

    def test_an_interruption_leaves_nothing_behind(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(command, "_report", _interrupt)
        assert run(["hello"]) == 130
        assert capsys.readouterr().err.startswith("USAGE-003") and not list(home.iterdir())

    @pytest.mark.parametrize(
        ("words", "has_display", "is_opened"), [((), True, False), (("--open",), True, True), (("--open",), False, False)]
    )
    def test_a_report_is_opened_where_it_can_be_seen(
        self,
        words: tuple[str, ...],
        has_display: bool,
        is_opened: bool,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        opened: list[str] = []

        def note(url: str) -> bool:
            opened.append(url)
            return True

        monkeypatch.setattr(command, "_report", _with_report)
        monkeypatch.setattr("shoal.cli.report.has_display", lambda: has_display)
        monkeypatch.setattr("webbrowser.open", note)
        assert run(["hello", *words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["opened"] is is_opened and len(opened) == is_opened
        assert all(url.startswith("file:///") and url.endswith("/shoal-hello/report.html") for url in opened)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _with_report(_: object, told: Any, made: Path) -> None:
    told.documents.append({})
    (made / "report.html").write_text("<!doctype html>")


def test_lines_are_broken_for_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    line = ("a head", "word " * 30)
    Stage(is_quiet=False, tell=print, width=80).lines([line])
    broken = capsys.readouterr().out.splitlines()
    assert len(broken) > 1 and all(len(one) <= 80 for one in broken) and broken[1].startswith(" " * 20 + "word")
    Stage(is_quiet=False, tell=print).lines([line])
    assert capsys.readouterr().out == f"     {'a head':<15}{('word ' * 30).rstrip()}\n"
    Stage(is_quiet=True, tell=lambda _: None).lines([line])
    assert capsys.readouterr().out == ""


class TestFiles:
    def test_a_directory_is_own_only_while_nobody_changes_it(self, home: Path) -> None:
        changes: list[Callable[[Path], object]] = [
            lambda out: (out / "a.txt").write_text("other"),
            lambda out: (out / "a.txt").unlink(),
            lambda out: shutil.copytree(out, out / "b"),
            lambda out: (out / "hello.json").write_text("{}"),
            lambda out: (out / "hello.json").write_text("["),
            lambda out: (out / "hello.json").unlink(),
        ]
        for i, change in enumerate(changes):
            made, out = home / f"made{i}", home / f"out{i}"
            write_directory(made, {"a.txt": "a"})
            publish(made, out, {"figure": i})
            check_target(out)
            change(out)
            before = sorted(out.rglob("*"))
            with pytest.raises(ShoalError) as error:
                publish(made, out, {})
            assert error.value.code == "NEW-001" and sorted(out.rglob("*")) == before

    def test_a_link_is_not_followed(self, home: Path) -> None:
        (home / "elsewhere").mkdir()
        (home / "out").symlink_to(home / "elsewhere")
        with pytest.raises(ShoalError):
            check_target(home / "out")

    def test_an_empty_directory_may_be_filled(self, home: Path) -> None:
        write_directory(home / "made", {"a.txt": "a"})
        (home / "out").mkdir()
        publish(home / "made", home / "out", {})
        assert sorted(path.name for path in (home / "out").iterdir()) == ["a.txt", "hello.json"]

    def test_a_failure_puts_back_what_was_there(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_directory(home / "made", {"a.txt": "a"})
        publish(home / "made", home / "out", {"which": 1})
        rename = Path.rename

        def failing(self: Path, target: Path) -> Path:
            if self.name.endswith(".new"):
                raise OSError(28, "No space left on device")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", failing)
        with pytest.raises(ShoalError) as error:
            publish(home / "made", home / "out", {"which": 2})
        assert "No space left" in error.value.what and json.loads((home / "out" / "hello.json").read_text())["which"] == 1
        assert sorted(path.name for path in home.iterdir()) == ["made", "out"]

    def test_work_is_done_in_memory_unless_somebody_says_where(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TMPDIR", raising=False)
        monkeypatch.setattr(hello_files, "_MEMORY", home)
        with working_directory() as name:
            assert Path(name).parent == home
        monkeypatch.setattr(hello_files, "_MEMORY", home / "none")
        with working_directory() as name:
            assert Path(name).parent != home
        assert not list(home.iterdir())


class TestProcesses:
    def test_are_gone_at_the_end_whatever_happens(self, home: Path) -> None:
        with pytest.raises(KeyboardInterrupt), children(home) as start:
            child = start("reader", "timeit", "-n1", "-r1", "import time; print('begun', flush=True); time.sleep(600)")
            assert child.first_line() == "begun"
            raise KeyboardInterrupt
        assert child.has_ended

    def test_end_when_nobody_holds_their_pipe(self, home: Path) -> None:
        with children(home) as start:
            child = start("reader", "timeit", "-n1", "-r1", "import time; print('begun', flush=True); time.sleep(600)")
            child.first_line()
            assert child.process.stdin is not None
            child.process.stdin.close()
            assert child.process.wait(60) != 0

    def test_one_that_fails_is_quoted(self, home: Path) -> None:
        with children(home) as start:
            child = start("coordinator", "shoal", "serve", "none.toml")
            with pytest.raises(ShoalError) as error:
                child.first_line()
            wait_for([child], lambda: None)
        assert error.value.code == "HELLO-001" and "exit code 3" in error.value.what and "SPEC-001" in (error.value.why or "")

    def test_a_closed_terminal_ends_what_it_started(self) -> None:
        with pytest.raises(KeyboardInterrupt), heeding_hang_up():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with heeding_hang_up():
                signal.raise_signal(signal.SIGHUP)
        finally:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_a_machine_that_is_too_busy_is_told_of(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that no machine can keep: nothing is learned, and that is no error."""
    said: list[str] = []
    monkeypatch.setattr(hello_served, "WINDOWS", (0.01,))
    served = serve_once(home, 1.0, said.append)
    assert served["status"] == "failed" and "result" not in served and said[-1].startswith("this machine is too busy")
    words = dict(served_lines(served))
    assert words["left out"].startswith("This machine is too busy: in 0.01 s ")
