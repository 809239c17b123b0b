"""The demonstration in parts: true output, missing extras, and an atomic directory."""

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
from shoal.cli.hello import DemoScreen, files, live_study
from shoal.cli.hello import population as hello_population
from shoal.cli.hello.files import check_output_directory, make_workspace, move_into_place
from shoal.cli.hello.live_study import describe_live_study, run_live_study
from shoal.cli.hello.one_person import describe_person, run_one_person
from shoal.cli.hello.population import describe_comparison, format_csv, make_population
from shoal.cli.hello.processes import interrupt_on_hangup, manage_processes, wait_for_all
from shoal.cli.main import run
from shoal.data.tables import read_table_file
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError, format_install_command
from shoal.files import write_directory
from shoal.study.loader import load_study


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory, with the user's ledger in it."""
    monkeypatch.setenv("SHOAL_LEDGER", str(tmp_path / "mine.db"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide all extras, so that only the first step runs, and make it quick."""
    monkeypatch.setattr(
        command,
        "_EXTRA_MODULES",
        dict.fromkeys(command._EXTRA_MODULES, ("a module that nobody has",)),
    )
    monkeypatch.setattr(hello_population, "ROWS", 400)


class TestPerson:
    def test_person_goes_through_all_states_of_a_ledger(self, home: Path) -> None:
        person = run_one_person(2.0, SeededEntropy(3), home / "ledger.db")
        assert person["bytes"] == person["retry"] == {"no": "00", "yes": "01"}[person["sent"]]
        assert (
            person["state"] == "sent"
            and person["event"]["unit"] == "person"
            and 2 - 1e-9 < person["event"]["epsilon"] <= 2
        )
        words = "\n".join(f"{head} {line}" for head, line in describe_person(person))
        for part in (
            "the truth with probability 88.1 %",
            "at most 88.1 of 100",
            "relation replace, against everyone",
            "spent 2.0 of 4.0 a year",
        ):
            assert part in words

    def test_person_reports_the_truth_with_the_stated_probability(self, home: Path) -> None:
        told = [run_one_person(1.0, SeededEntropy(i), home / f"{i}.db") for i in range(60)]
        n_true = sum(person["truth"] == person["sent"] for person in told)
        # 44 are expected; the seeds are fixed.
        assert 34 <= n_true <= 54 and {person["truth"] for person in told} == {"no", "yes"}


class TestPopulation:
    def test_files_are_a_study_and_rows_that_fit(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hello_population, "ROWS", 4000)
        population = make_population(0.5)
        (home / "study.toml").write_text(population.text)
        (home / "people.csv").write_text(format_csv(population.table))
        study, rows = load_study(home / "study.toml"), read_table_file(home / "people.csv")
        assert (
            study == population.study
            and study.privacy.epsilon == 0.5
            and study.participation.size == 3000
        )
        encoded, labels = study.schema().encode(rows), study.schema().encode_label(rows)
        assert all(
            (encoded[name] == study.schema().encode(population.table)[name]).all()
            for name in encoded
        )
        assert (labels == study.schema().encode_label(population.table)).all()

    def test_best_accuracy_is_above_guessing_and_hardly_exceeded(self) -> None:
        population = make_population(1.0)
        assert population.guessing_accuracy + 0.08 < population.best_accuracy < 0.8
        unseen = population.make_test_table()
        assert np.mean(unseen["sleeps_badly"] == "no") == pytest.approx(
            population.guessing_accuracy
        )

    def test_lines_show_each_protocol_with_its_guarantee(self) -> None:
        scores = {"accuracy": {"value": 0.7, "error": 0.01}}
        entry = {
            "variant": "plus",
            "scores": scores,
            "epsilon": 1.0,
            "delta": 0.0,
            "unit": "person",
            "relation": "replace",
        }
        crowd = {"epsilon": 0.1, "delta": 1e-6, "adversary": "those who see batches"}
        result = {
            "entries": [
                {
                    **entry,
                    "name": "AnonML plus, local",
                    "trust": "local",
                    "adversary": "everyone",
                    "central": None,
                },
                {
                    **entry,
                    "name": "AnonML plus, shuffled",
                    "trust": "shuffled",
                    "adversary": "everyone",
                    "central": crowd,
                },
                {
                    **entry,
                    "name": "SDQ paper",
                    "variant": "paper",
                    "adversary": "the miner",
                    "central": None,
                },
            ],
            "yardsticks": {"most_common": {"accuracy": 0.6}, "without_privacy": {"accuracy": 0.75}},
            "repeats": 5,
            "rows": {"unseen": 1000},
        }
        words = "\n".join(line for _, line in describe_comparison(result, 0.74))
        for part in (
            "guessing the most common answer     60.0 %",
            "AnonML plus, local                  70.0 %   67.2 % to 72.8 %",
            "without privacy                     75.0 %",
            "best possible                       74.0 %",
            "AnonML, local: epsilon 1.0 for one person, replace, against everyone",
            "AnonML, shuffled: also epsilon 0.1, delta 1e-06 for one person, replace, against "
            "those who see batches",
            "the report also has 1 variants from the papers",
        ):
            assert part in words
        assert "SDQ" not in words


@pytest.mark.usefixtures("alone")
class TestCommand:
    def test_hello_names_missing_extras_and_runs_the_other_steps(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(["hello"]) == 0
        printed = capsys.readouterr().out
        for part in (
            "true answer",
            f"To see it: {format_install_command('learn')}",
            f"To see it: {format_install_command('serve', 'anonymous')}",
            "nothing to report, because",
            "shoal-hello: study.toml, people.csv",
        ):
            assert part in printed
        assert printed.rstrip().endswith(
            "next      shoal new my-study --protocol anonml --from rows.csv"
        )
        assert sorted(path.name for path in (home / "shoal-hello").iterdir()) == [
            "hello.json",
            "people.csv",
            "study.toml",
        ]
        assert sorted(path.name for path in home.iterdir()) == ["shoal-hello"]

    def test_hello_json_is_one_object_with_the_same_values(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(["hello", "--epsilon", "2", "--out", "there", "--json"]) == 0
        printed = capsys.readouterr()
        told = json.loads(printed.out)
        assert (
            printed.err == ""
            and told["epsilon"] == 2.0
            and told["directory"] == "there"
            and told["report"] is None
        )
        assert [(one["step"], one.get("fix")) for one in told["left_out"]] == [
            (2, format_install_command("learn")),
            (3, format_install_command("serve", "anonymous")),
            (4, None),
        ]
        kept = json.loads((home / "there" / "hello.json").read_text())
        assert kept["made_by"] == "shoal hello" and kept["person"] == told["person"]

    def test_hello_replaces_only_its_own_unchanged_output(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(["hello"]) == 0
        assert run(["hello", "--epsilon", "2"]) == 0
        assert load_study(home / "shoal-hello" / "study.toml").privacy.epsilon == 2.0
        (home / "shoal-hello" / "notes.txt").write_text("mine")
        assert run(["hello"]) == 2
        assert (
            capsys.readouterr().err.startswith("NEW-001")
            and (home / "shoal-hello" / "notes.txt").read_text() == "mine"
        )

    @pytest.mark.parametrize("epsilon", ["0", "0.09", "4.1", "nan", "-1", "inf", "much"])
    def test_hello_rejects_an_epsilon_out_of_range(
        self, epsilon: str, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(["hello", "--epsilon", epsilon]) == 2
        printed = capsys.readouterr()
        assert (
            printed.err.startswith("USAGE-001") and printed.out == "" and not list(home.iterdir())
        )

    @pytest.mark.parametrize("epsilon", ["0.1", "4"])
    def test_hello_accepts_the_ends_of_the_range(self, epsilon: str) -> None:
        assert run(["hello", "--epsilon", epsilon]) == 0

    @pytest.mark.parametrize("out", ["/proc/x", "file/x", "none/x", "file", "a\0b", "a" * 300])
    def test_hello_rejects_an_unwritable_directory_before_it_runs(
        self, out: str, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (home / "file").write_text("mine")
        assert run(["hello", "--out", out]) in (1, 2)
        printed = capsys.readouterr()
        assert (
            printed.err.startswith("NEW-001") and "--out DIR" in printed.err and printed.out == ""
        )
        assert [path.name for path in home.iterdir()] == ["file"]

    def test_hello_reports_a_missing_temporary_directory(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("TMPDIR", "/nowhere")
        monkeypatch.setattr("tempfile.tempdir", "/nowhere")
        assert run(["hello"]) == 1
        assert capsys.readouterr().err.startswith("LEDGER-001") and not list(home.iterdir())

    def test_interruption_leaves_no_files(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(command, "_write_report", _interrupt)
        assert run(["hello"]) == 130
        assert capsys.readouterr().err.startswith("USAGE-003") and not list(home.iterdir())

    @pytest.mark.parametrize(
        ("words", "has_display", "is_opened"),
        [((), True, False), (("--open",), True, True), (("--open",), False, False)],
    )
    def test_report_is_opened_only_at_a_display(
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

        monkeypatch.setattr(command, "_write_report", _with_report)
        monkeypatch.setattr("shoal.cli.report.has_display", lambda: has_display)
        monkeypatch.setattr("webbrowser.open", note)
        assert run(["hello", *words, "--json"]) == 0
        assert (
            json.loads(capsys.readouterr().out)["opened"] is is_opened and len(opened) == is_opened
        )
        assert all(
            url.startswith("file:///") and url.endswith("/shoal-hello/report.html")
            for url in opened
        )


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _with_report(_: object, told: Any, made: Path) -> None:
    told.documents.append({})
    (made / "report.html").write_text("<!doctype html>")


def test_lines_are_wrapped_only_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    line = ("a head", "word " * 30)
    DemoScreen(is_quiet=False, on_progress=print, width=80).print_lines([line])
    broken = capsys.readouterr().out.splitlines()
    assert (
        len(broken) > 1
        and all(len(one) <= 80 for one in broken)
        and broken[1].startswith(" " * 20 + "word")
    )
    DemoScreen(is_quiet=False, on_progress=print).print_lines([line])
    assert capsys.readouterr().out == f"     {'a head':<15}{('word ' * 30).rstrip()}\n"
    DemoScreen(is_quiet=True, on_progress=lambda _: None).print_lines([line])
    assert capsys.readouterr().out == ""


class TestFiles:
    def test_output_directory_is_own_until_it_is_changed(self, home: Path) -> None:
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
            move_into_place(made, out, {"figure": i})
            check_output_directory(out)
            change(out)
            before = sorted(out.rglob("*"))
            with pytest.raises(ShoalError) as error:
                move_into_place(made, out, {})
            assert error.value.code == "NEW-001" and sorted(out.rglob("*")) == before

    def test_longest_valid_name_is_accepted_and_a_longer_one_is_rejected(self, home: Path) -> None:
        check_output_directory(home / ("a" * 255))
        with pytest.raises(ShoalError) as error:
            check_output_directory(home / ("a" * 256))
        assert error.value.code == "NEW-001" and not list(home.iterdir())
        write_directory(home / "made", {"a.txt": "a"})
        move_into_place(home / "made", home / ("a" * 255), {})
        assert (home / ("a" * 255) / "a.txt").read_text() == "a"

    def test_symbolic_link_is_not_followed(self, home: Path) -> None:
        (home / "elsewhere").mkdir()
        (home / "out").symlink_to(home / "elsewhere")
        with pytest.raises(ShoalError):
            check_output_directory(home / "out")

    def test_empty_directory_is_filled(self, home: Path) -> None:
        write_directory(home / "made", {"a.txt": "a"})
        (home / "out").mkdir()
        move_into_place(home / "made", home / "out", {})
        assert sorted(path.name for path in (home / "out").iterdir()) == ["a.txt", "hello.json"]

    def test_failure_restores_the_earlier_output(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_directory(home / "made", {"a.txt": "a"})
        move_into_place(home / "made", home / "out", {"which": 1})
        rename = Path.rename

        def failing(self: Path, target: Path) -> Path:
            if self.name == "new":
                raise OSError(28, "No space left on device")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", failing)
        with pytest.raises(ShoalError) as error:
            move_into_place(home / "made", home / "out", {"which": 2})
        assert (
            "No space left" in error.value.what
            and json.loads((home / "out" / "hello.json").read_text())["which"] == 1
        )
        assert sorted(path.name for path in home.iterdir()) == ["made", "out"]

    def test_workspace_is_in_memory_unless_tmpdir_is_set(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("TMPDIR", raising=False)
        monkeypatch.setattr(files, "_MEMORY_DIRECTORY", home)
        with make_workspace() as name:
            assert Path(name).parent == home
        monkeypatch.setattr(files, "_MEMORY_DIRECTORY", home / "none")
        with make_workspace() as name:
            assert Path(name).parent != home
        assert not list(home.iterdir())


class TestProcesses:
    def test_processes_have_ended_after_an_error(self, home: Path) -> None:
        with pytest.raises(KeyboardInterrupt), manage_processes(home) as start:
            child = start(
                "reader",
                "timeit",
                "-n1",
                "-r1",
                "import time; print('begun', flush=True); time.sleep(600)",
            )
            assert child.wait_for_first_line() == "begun"
            raise KeyboardInterrupt
        assert child.has_ended

    def test_process_ends_when_its_pipe_is_closed(self, home: Path) -> None:
        with manage_processes(home) as start:
            child = start(
                "reader",
                "timeit",
                "-n1",
                "-r1",
                "import time; print('begun', flush=True); time.sleep(600)",
            )
            child.wait_for_first_line()
            assert child.process.stdin is not None
            child.process.stdin.close()
            assert child.process.wait(60) != 0

    def test_process_that_fails_is_quoted(self, home: Path) -> None:
        with manage_processes(home) as start:
            child = start("coordinator", "shoal", "serve", "none.toml")
            with pytest.raises(ShoalError) as error:
                child.wait_for_first_line()
            wait_for_all([child], lambda: None)
        assert (
            error.value.code == "HELLO-001"
            and "exit code 3" in error.value.what
            and "SPEC-001" in (error.value.why or "")
        )

    def test_closed_terminal_interrupts_unless_ignored(self) -> None:
        with pytest.raises(KeyboardInterrupt), interrupt_on_hangup():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with interrupt_on_hangup():
                signal.raise_signal(signal.SIGHUP)
        finally:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_window_that_is_too_short_is_reported_without_an_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window that no machine can keep: the study fails, and the demonstration does not."""
    said: list[str] = []
    monkeypatch.setattr(live_study, "WINDOWS", (0.01,))
    served = run_live_study(home, 1.0, said.append)
    assert (
        served["status"] == "failed"
        and "result" not in served
        and said[-1].startswith("this machine is too busy")
    )
    words = dict(describe_live_study(served))
    assert words["left out"].startswith("This machine is too busy: in 0.01 s ")
