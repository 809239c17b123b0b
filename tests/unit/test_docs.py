"""The pages: written from the code where they describe it, and held to it elsewhere. Examples run,
commands exist, data is credited.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cyclopts import App, CycloptsError

from benchmarks.__main__ import BENCHMARKS, FIGURES
from shoal.cli.main import COMMANDS
from shoal.errors import CODES
from tools import reference
from tools.reference import errors as reference_errors
from tools.reference.commands import command_apps
from tools.reference.errors import error_page
from tools.reference.sentences import Saying, sayings
from tools.reference.sources import Sources, read_sources

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted(DOCS.rglob("*.md")),
]
WRITTEN = [page for page in PAGES if page.name not in ("errors.md", "commands.md")]
"""Pages that people write."""
SHELLS = ("", "console", "sh", "bash")
BLOCK = re.compile(
    r"(?P<mark><!-- not run: .+ -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```",
    re.MULTILINE | re.DOTALL,
)


def blocks(page: Path) -> Iterator[tuple[str, str, bool]]:
    """Kind, text, and whether it is to be run, of each block of code of a page."""
    for found in BLOCK.finditer(page.read_text("utf-8")):
        yield found["kind"], found["text"], found["mark"] is None


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# Installation

FROM_INDEX = re.compile(
    r"\bpip3? +install(?: +-[-\w]+)* +['\"]?shoal\b|['`]shoal\\?\[",
)
"""A command or requirement that a package index would resolve by the bare name."""


def list_texts() -> list[Path]:
    """List everything that people read: pages, sources of messages, tools, examples."""
    folders = ("src", "docs", "tools", "benchmarks", "examples", "changes")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    kinds = {".py", ".md", ".toml", ".txt", ".sh", ".html", ".json", ".svg", ".ipynb"}
    return [path for path in [*found, *ROOT.glob("*"), ROOT / "Makefile"] if path.suffix in kinds]


def test_nothing_installs_the_bare_name_from_an_index() -> None:
    """The name is not registered, so a stranger could register it."""
    texts = list_texts()
    assert len(texts) > 400
    assert [
        f"{name_of(path)}: {found[0]}"
        for path in texts
        for found in FROM_INDEX.finditer(path.read_text("utf-8"))
    ] == []


@pytest.mark.parametrize(
    ("text", "is_from_index"),
    [
        ("pip install 'shoal[serve]'", True),
        ("pip install --upgrade shoal", True),
        ("pip install shoal", True),
        ("install `shoal[sim]` too", True),
        ("pip install -e '.[serve]'", False),
        ("pip install -e . in a clone of shoal", False),
    ],
)
def test_bare_name_is_recognised(text: str, is_from_index: bool) -> None:
    assert (FROM_INDEX.search(text) is not None) == is_from_index


# What is written from code


def test_generated_pages_are_current() -> None:
    """Written by ``make docs``."""
    assert reference.find_stale(reference.pages()) == []


def test_find_stale_lists_missing_and_changed_pages(tmp_path: Path) -> None:
    wanted = {"reference/errors.md": "a", "reference/commands.md": "b"}
    assert reference.find_stale(wanted, tmp_path) == sorted(wanted)
    (tmp_path / "reference").mkdir()
    for name, text in wanted.items():
        (tmp_path / name).write_text(text)
    assert reference.find_stale(wanted, tmp_path) == []
    changed = {**wanted, "reference/errors.md": "other"}
    assert reference.find_stale(changed, tmp_path) == ["reference/errors.md"]


@pytest.fixture(scope="module")
def error_sections() -> dict[str, str]:
    """Code -> its section of the page of error codes."""
    text = (DOCS / "reference" / "errors.md").read_text("utf-8")
    parts = re.split(r"^### (\S+)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_section_that_helps(code: str, error_sections: dict[str, str]) -> None:
    says, does = error_sections[code].split("Messages:")[1].split("What to do:")
    advice = does.split("\n## ")[0].split("\n*Written")[0].strip()
    assert re.search(r"^- \*\*.+\*\*", says, re.MULTILINE), "no sentence"
    assert "    - fix: " in says or advice != "The sentence that you met has its fix above."
    assert len(advice) > 10
    # No Python is left in a sentence: no attribute, no unformatted field.
    assert not re.search(r"\bself\.|\{[a-z_.]+[}!:]|\bf[\"']", says)


def test_a_code_without_help_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_errors, "_advice", dict)
    with pytest.raises(SystemExit, match=r"Nothing says what to do about .*USAGE-001"):
        error_page(Sources())


def test_advice_on_a_code_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_errors, "_advice", lambda: {"NONE-001": "Nothing."})
    with pytest.raises(SystemExit, match="NONE-001"):
        error_page(Sources())


SOURCE = """
from shoal.errors import UsageError
LATE = "TEST-002"
def format_count(n, noun): ...
class NearError(UsageError): ...
def report(path, n, is_new):
    what = f"{path} has {format_count(n, 'row')}"
    what += "." if is_new else ", again."
    if n:
        why = "First."
        raise UsageError("TEST-001", what, why=why, fix=f"Give {n + 1} or --data {path!r}.")
    why = "Second."
    raise NearError("TEST-001", f"{len(path)} of {path.size} {'rows' if n else 'cells'}", why=why)
def late(reason):
    raise UsageError(LATE, f"Too late: {reason}.", fix=ask(reason))
late("it is over")
def unknown(reason):
    return UsageError("TEST-003", reason)
"""


def read(tmp_path: Path, text: str) -> list[Saying]:
    (tmp_path / "src" / "shoal").mkdir(parents=True)
    (tmp_path / "src" / "shoal" / "mine.py").write_text(text)
    errors = (ROOT / "src" / "shoal" / "errors.py").read_text("utf-8")
    (tmp_path / "src" / "shoal" / "errors.py").write_text(errors)
    found = sayings(read_sources(tmp_path / "src"))
    return [saying for saying in found if saying.module == "shoal.mine"]


def test_sentences_are_read_with_the_text_that_reaches_them(tmp_path: Path) -> None:
    first, second, late, unknown = read(tmp_path, SOURCE)
    assert first.what == ("«path» has «n» rows.", "«path» has «n» rows, again.")
    assert (first.why, first.fix) == (("First.",), ("Give «value» or --data «path».",))
    assert second.what == ("«n» of «size» rows", "«n» of «size» cells") and second.why == (
        "Second.",
    )
    assert (late.code, late.what, late.fix) == ("TEST-002", ("Too late: it is over.",), ())
    assert unknown.what == ()  # never guessed


def test_an_index_page_lists_exit_codes_of_descendants(tmp_path: Path) -> None:
    found = read(tmp_path, SOURCE)
    sources = read_sources(tmp_path / "src")
    assert reference_errors._exits(found, sources) == [2]


# What people write


@pytest.fixture(scope="module")
def readme_names() -> dict[str, Any]:
    """What the examples of the README take for given: rows of people, and which hospital holds
    them.
    """
    import pandas as pd

    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {"age": rng.integers(17, 91, 3000), "sex": rng.choice(["Female", "Male"], 3000)}
    )
    y = np.where(X.age + rng.normal(0, 20, 3000) > 50, ">50K", "<=50K")
    hospitals = np.array(["north", "east", "south", "west", "centre"])[rng.integers(0, 5, 3000)]
    return {"X": X, "y": y, "X_test": X[:50], "hospital_of_each_row": hospitals}


RUN = [
    page for page in WRITTEN if any(kind == "python" and is_run for kind, _, is_run in blocks(page))
]


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_python_examples_run(
    page: Path, readme_names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of a page follow each other, as a reader would type them."""
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    names = dict(readme_names) if page.name == "README.md" else {}
    names["__name__"] = "__main__"
    for number, (kind, text, is_run) in enumerate(blocks(page)):
        if kind == "python" and is_run:
            exec(compile(text, f"{name_of(page)}, block {number}", "exec"), names)


@pytest.fixture(scope="module")
def apps() -> dict[str, App]:
    return command_apps()


def command_lines(page: Path) -> Iterator[list[str]]:
    """The words of every shoal command in the blocks of a page; where some lines begin with a
    prompt, the others are what was printed.
    """
    for kind, text, _ in blocks(page):
        lines = text.replace("\\\n", " ").splitlines() if kind in SHELLS else []
        typed = [line for line in lines if line.startswith("$ ")] or lines
        for line in typed:
            for part in re.split(r"&&|\||;|\s&(?:\s|$)", line.removeprefix("$ ")):
                if re.match(r"\s*shoal [a-z]", part):
                    yield shlex.split(re.split(r"\s[0-9]?>", part)[0], comments=True)


def inline_commands(page: Path) -> Iterator[list[str]]:
    """The words of every shoal command in running text."""
    text = BLOCK.sub("", page.read_text("utf-8"))
    yield from (found.split() for found in re.findall(r"(?<!\\)`(shoal [a-z][^`\n]*)`", text))


def app_of(apps: dict[str, App], words: list[str]) -> tuple[App | None, list[str]]:
    """The command that words name, and its own ones."""
    for n in (3, 2):
        if " ".join(words[:n]) in apps:
            return apps[" ".join(words[:n])], words[n:]
    return None, []


COMMANDING = [page for page in WRITTEN if any(True for _ in command_lines(page))]


@pytest.mark.parametrize("page", COMMANDING, ids=name_of)
def test_commands_in_blocks_can_be_read(page: Path, apps: dict[str, App]) -> None:
    for words in command_lines(page):
        app, own = app_of(apps, words)
        assert app is not None, f"there is no command {' '.join(words)}"
        if "--help" in own:
            continue
        try:
            app.parse_args(own, exit_on_error=False, print_error=False)
        except CycloptsError as error:
            raise AssertionError(f"{shlex.join(words)}: {error}") from None


def check_inline(page: Path, apps: dict[str, App]) -> None:
    for words in inline_commands(page):
        if (
            not words[1].isalpha() or words[1].isupper() or words[-1] == "1"
        ):  # shoal --help, shoal COMMAND, the labels of what is signed
            continue
        assert words[1] in COMMANDS, f"there is no command {' '.join(words)}"
        app, own = app_of(apps, words)
        options = {word.split("=")[0].rstrip(".,;:") for word in own if word.startswith("--")} - {
            "--help"
        }
        known = (
            {name for argument in app.assemble_argument_collection() for name in argument.names}
            if app
            else set()
        )
        assert options <= known, f"{' '.join(words)} has no {', '.join(sorted(options - known))}"


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_commands_in_sentences_exist(page: Path, apps: dict[str, App]) -> None:
    check_inline(page, apps)


def test_commands_in_advice_exist(apps: dict[str, App]) -> None:
    for page in [DOCS / "reference" / "errors.md"]:
        check_inline(page, apps)


def test_a_command_that_is_not_there_is_found(apps: dict[str, App], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ shoal swim --deep\n$ cd x && shoal check study.toml --dat rows.csv | "
        "head\n```\n\nRun `shoal check S --depth 3`.\n"
    )
    first, second = command_lines(page)
    assert app_of(apps, first) == (None, [])
    app, own = app_of(apps, second)
    assert app is not None and own == ["study.toml", "--dat", "rows.csv"]
    with pytest.raises(CycloptsError):
        app.parse_args(own, exit_on_error=False, print_error=False)
    assert list(inline_commands(page)) == [["shoal", "check", "S", "--depth", "3"]]


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_benchmarks_and_targets_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    assert set(re.findall(r"python -m benchmarks run ([a-z-]+)", text)) <= BENCHMARKS.keys()
    assert set(re.findall(r"python -m benchmarks figure ([a-z0-9-]+)", text)) <= FIGURES.keys()
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    told = re.findall(r"`make ([a-z]+)`", text) + [
        word
        for _, block, _ in blocks(page)
        for word in re.findall(r"^(?:\$ )?make ([a-z]+)", block, re.M)
    ]
    assert set(told) <= targets


@pytest.mark.parametrize("page", sorted((DOCS / "benchmarks").glob("*.md")), ids=name_of)
def test_every_page_of_figures_has_its_command(page: Path) -> None:
    assert re.search(r"^python -m benchmarks (run|figure) ", page.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_paths_in_pages_exist(page: Path) -> None:
    """Tests, tools and modules that a page names are there."""
    text = page.read_text("utf-8")
    named = set(re.findall(r"`((?:tests|tools|examples|benchmarks|src/shoal)/[\w./-]+)`", text))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


# Whose data it is


def datasets() -> dict[str, dict[str, str]]:
    read: dict[str, dict[str, str]] = tomllib.loads(
        (ROOT / "tools" / "datasets.toml").read_text("utf-8")
    )["dataset"]
    return read


NAMES = {
    "adult": "Adult",
    "mnist": "MNIST",
    "nursery": "Nursery",
    "bank_marketing": "Bank Marketing",
    "diabetic_retinopathy": "Diabetic Retinopathy Debrecen",
    "bike_sharing_hour": "Bike Sharing",
    "phishing_websites": "Phishing Websites",
    "mooc_dropout_oulad": "Open University Learning Analytics",
}


def test_every_dataset_is_credited() -> None:
    assert datasets().keys() == NAMES.keys(), (
        "a new dataset needs a credit in NOTICE and docs/credits.md"
    )
    for text in ((ROOT / "NOTICE").read_text("utf-8"), (DOCS / "credits.md").read_text("utf-8")):
        for key, dataset in datasets().items():
            assert NAMES[key] in text
            author = re.split(
                r"[ ,&]+", dataset["source"].rsplit(",", 1)[-1 if key != "mnist" else 0].strip()
            )[0]
            assert dataset["licence"].split(" (")[0] in text and author.split()[0] in text


@pytest.mark.parametrize("page", sorted((DOCS / "benchmarks").glob("*.md")), ids=name_of)
def test_figures_of_a_dataset_have_a_credit_beside_them(page: Path) -> None:
    text = page.read_text("utf-8")
    shown = [
        name
        for name in (
            "Adult",
            "Nursery",
            "Bank",
            "Phishing",
            "MNIST",
            "OULAD",
            "Bike",
            "Retinopathy",
        )
        if re.search(rf"^\|.*{name}", text, re.M)
    ]
    credit = next((line for line in text.splitlines() if line.startswith("Data: ")), "")
    assert [name for name in shown if name not in credit] == []
    assert not shown or "(../credits.md)" in credit
