"""Errors of study files name the file, the line, the key and the fix."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from shoal.errors import SpecError
from shoal.study import explain
from shoal.study.loader import MAX_STUDY_BYTES, StudyError, load_study, parse_study_text
from shoal.study.positions import KeyPositions
from shoal.study.spec import FeatureSpec
from shoal.study.starters import STARTER_PROTOCOLS, read_starter

GOOD = read_starter("anonml")


def find_line_number(text: str, fragment: str) -> int:
    return text[: text.index(fragment)].count("\n") + 1


def parse_invalid(text: str, name: str = "study.toml") -> StudyError:
    with pytest.raises(StudyError) as error:
        parse_study_text(text, name)
    return error.value


@pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
def test_starter_studies_are_valid(protocol: str) -> None:
    assert parse_study_text(read_starter(protocol)).protocol == protocol


def test_error_of_worked_example_has_code_line_and_fix() -> None:
    error = parse_invalid(GOOD.replace("epsilon = 2.0 ", 'epsilon = "2" '))
    line = find_line_number(GOOD, "epsilon = 2.0")
    assert (
        str(error)
        == f'SPEC-012  study.toml:{line}  epsilon = "2" must be a number, not text.\n  fix       '
        "epsilon = 2.0"
    )
    assert error.exit_code == 3


@pytest.mark.parametrize(
    ("old", "new", "code", "what", "fix"),
    [
        (
            "size = 20000",
            "size = 2e4",
            "SPEC-012",
            "size = 20000.0 must be a whole number",
            "size = 20000",
        ),
        (
            "size = 20000",
            'size = "many"',
            "SPEC-012",
            'size = "many" must be a whole number, written without a point, not text',
            "size: Declared size",
        ),
        (
            "missing = false",
            'missing = "false"',
            "SPEC-012",
            'missing = "false" must be true or false',
            "missing = false",
        ),
        (
            '"no", "yes"',
            "false, true",
            "SPEC-012",
            "values[0] = false must be text in quotes",
            '"false", in quotes',
        ),
        (
            'title = "Who finishes the course?"',
            "title = 7",
            "SPEC-012",
            "title = 7 must be text in quotes",
            'title = "7"',
        ),
        (
            "range = [0, 200]",
            "range = 200",
            "SPEC-012",
            "range = 200 must be a list",
            "range: Public range",
        ),
        (
            "range = [0, 200]",
            "range = [200]",
            "SPEC-013",
            "range must be a list of two",
            "range: Public range",
        ),
        (
            "range = [0, 200]",
            "range = [0, 100, 200]",
            "SPEC-013",
            "range = (a list of 3) must be a list of at most 2",
            "range: Public",
        ),
        (
            "range = [0, 200]",
            "range = [200, 0]",
            "SCHEMA-002",
            "hours_watched: the range from 200.0 to 0.0",
            "smaller one first",
        ),
        (
            "epsilon = 2.0",
            "epsilon = 0",
            "SPEC-013",
            "epsilon = 0 must be at least 1e-09",
            "For example: epsilon = 1.0",
        ),
        (
            "epsilon = 2.0",
            "epsilon = nan",
            "SPEC-013",
            "epsilon = nan must be a finite number",
            "example: epsilon = 1.0",
        ),
        (
            "epsilon = 2.0",
            "epsilon = 0x" + "f" * 5000,
            "SPEC-012",
            "(a number of more than 64 bits)",
            "epsilon: The budget",
        ),
        (
            "epsilon = 2.0",
            "epsilom = 2.0\nepsilon = 2.0",
            "SPEC-010",
            '[privacy] has no key "epsilom"',
            "Did you mean epsilon?",
        ),
        ("epsilon = 2.0", "", "SPEC-011", "[privacy] lacks epsilon", "epsilon: The budget"),
        (
            "spec = 1",
            "epsilon = 1.0\nspec = 1",
            "SPEC-010",
            'The study has no key "epsilon"',
            "epsilon belongs under [privacy].",
        ),
        (
            "spec = 1",
            "features = []\nspec = 1",
            "SPEC-010",
            'The study has no key "features"',
            "Did you mean feature?",
        ),
        (
            "spec = 1",
            "zzz = 1\nspec = 1",
            "SPEC-010",
            'The study has no key "zzz"',
            "The study may have: spec, title",
        ),
        (
            'variant = "plus"',
            'variant = "pluss"',
            "SPEC-013",
            "variant = \"pluss\" must be 'plus' or 'paper'",
            '"plus"',
        ),
        (
            'contact = "tutors@example.org"',
            'contact = "a\\u001bb"',
            "SPEC-013",
            "must be plain text",
            "contact: Whom to ask.",
        ),
        (
            "closes = 2031-01-31T12:00:00Z",
            "closes = 2031-01-31T12:00:00",
            "SPEC-013",
            "must be a time with its zone",
            "closes: When",
        ),
        (
            "closes = 2031-01-31T12:00:00Z",
            "closes = 2031-01-31",
            "SPEC-012",
            "closes = 2031-01-31 must be a date and time",
            "closes: When",
        ),
        ("north = [", '"\\u202e" = [', "SPEC-013", "must be plain text", "groups"),
        (
            'name = "country"',
            'name = "country"\nkind = 1',
            "SPEC-010",
            '[[feature]] number 4 has no key "kind"',
            "may have: name, range",
        ),
        (
            "[label]",
            "[[label]]",
            "SPEC-012",
            "label = (a list of 1) must be a table, not a list",
            "Write [label] on a separate line",
        ),
        (
            "[label]",
            "label = 64.1\n[labels]",
            "SPEC-012",
            "label = 64.1 must be a table, not a number",
            "Write [label] on a separate line",
        ),
        (
            "epsilon = 2.0",
            "epsilon = 2031-01-31",
            "SPEC-012",
            "epsilon = 2031-01-31 must be a number, not a date.",
            "epsilon: The budget",
        ),
        ("size = 20000", "size = 12:00:00", "SPEC-012", "not a time.", "size: Declared size"),
        (
            'protocol = "anonml"',
            'protocol = "x"',
            "SPEC-013",
            'protocol = "x" must be',
            'protocol = "anonml" or protocol = "ddml"',
        ),
        (
            'variant = "plus"',
            'variant = "漢字"',
            "SPEC-013",
            'variant = "漢字" must be',
            'variant = "plus" or variant = "paper"',
        ),
        (
            'variant = "plus"',
            'variant = "\\u202e"',
            "SPEC-013",
            'variant = "\\u202e" must be',
            'variant = "plus"',
        ),
        (
            'title = "Who finishes the course?"',
            'title = ""',
            "SPEC-013",
            'title = "" must be',
            "title: One line",
        ),
        (
            "closes = 2031-01-31T12:00:00Z",
            "closes = 0001-01-01T00:00:00+14:00",
            "SPEC-013",
            "years 1 to 9999 in UTC",
            "closes: When",
        ),
        (
            "closes = 2031-01-31T12:00:00Z",
            "closes = 9999-12-31T23:59:00-14:00",
            "SPEC-013",
            "years 1 to 9999 in UTC",
            "closes: When",
        ),
        (
            'trust = "local"',
            'trust = "secure-sum"',
            "SPEC-020",
            'does not support trust = "secure-sum"',
            'trust = "local"',
        ),
    ],
)
def test_study_error_names_line_key_value_and_fix(
    old: str, new: str, code: str, what: str, fix: str | None
) -> None:
    text = GOOD.replace(old, new, 1)
    error = parse_invalid(text)
    assert error.code == code
    assert what in error.what
    assert (error.fix is None) if fix is None else (error.fix is not None and fix in error.fix)
    first = new.split("\n")[0]
    expected = find_line_number(text, first) if first else find_line_number(text, "[privacy]")
    expected = (
        find_line_number(text, 'name = "country"')
        + (1 if code == "SPEC-010" and "kind" in new else 0)
        if "country" in old
        else expected
    )
    assert f"study.toml:{expected}  " in error.what


@pytest.mark.parametrize("value", ["0", "-1", "nan", '"two"'])
def test_fix_ends_with_an_example_to_type(value: str) -> None:
    fix = parse_invalid(GOOD.replace("epsilon = 2.0", f"epsilon = {value}")).fix
    assert (
        fix is not None
        and fix.startswith("epsilon: The budget")
        and fix.endswith(" For example: epsilon = 1.0")
    )
    assert (parse_invalid(GOOD.replace("minimum = 2000", "minimum = -3")).fix or "").endswith(
        "minimum = 500"
    )


def test_examples_offered_as_fixes_are_valid() -> None:
    for key, value in explain._EXAMPLES.items():
        models = [
            model for model in (FeatureSpec, *explain._TABLES.values()) if key in model.model_fields
        ]
        assert models, key
        for model in models:
            typed = tomllib.loads(f"{key} = {value}")
            try:
                model.model_validate(typed)
            except ValidationError as error:
                assert key not in {detail["loc"][0] for detail in error.errors() if detail["loc"]}


def test_error_about_bins_names_the_line_of_the_list() -> None:
    text = GOOD.replace("bins = [40, 60, 80]", "bins = [\n  40,\n  40,\n]")
    error = parse_invalid(text, "deep/dir/s.toml")
    assert (
        error.code == "SCHEMA-003"
        and f"s.toml:{find_line_number(text, 'bins = [' + chr(10))}  homework_mean" in error.what
    )


def test_all_problems_are_listed_in_order_of_lines() -> None:
    text = (
        GOOD.replace("epsilon = 2.0", 'epsilon = "x"')
        .replace("range = [0, 200]", "range = 7")
        .replace("minimum = 2000", "")
    )
    error = parse_invalid(text)
    assert [problem.split()[0] for problem in error.problems] == [
        "SPEC-012",
        "SPEC-012",
        "SPEC-011",
    ]
    assert (
        error.why is not None
        and error.why.startswith("2 more problems:")
        and "[participation] lacks minimum" in error.why
    )
    assert "range = 7" in error.what


def test_at_most_fifty_problems_are_listed() -> None:
    error = parse_invalid("\n".join(f"k{i} = 1" for i in range(5_000)))
    assert len(error.problems) == 50


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("title = \n", 1),
        ('title = "a"\ntitle = "b"\n', 2),
        ("a = 1\n[a]\n", 2),
        ("a = [1,\n2", 2),
        ("a\0b = 1", 1),
        ("\n\na = 2031-13-45", 3),
        ("a = " + "9" * 5_000, 1),
        ("\n" + ".".join(["a"] * 20) + " = 1", 2),
        ('[ "x" . ' + "a ." * 20 + "a ]", 1),
        ("a = {" + "'b'." * 20 + "c = 1}", 1),
    ],
)
def test_invalid_toml_is_reported_with_its_line(text: str, line: int) -> None:
    error = parse_invalid(text)
    assert error.code == "SPEC-002" and error.what.startswith(f"study.toml:{line}  ")


def test_parse_rejects_deep_nesting() -> None:
    with pytest.raises(SpecError) as error:
        parse_study_text("a = " + "[" * 100_000 + "]" * 100_000)
    assert error.value.code == "SPEC-002"


@pytest.mark.parametrize("dots", ["www.a.b.c.d.e", "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o"])
def test_dots_inside_text_are_not_keys(dots: str) -> None:
    assert parse_study_text(GOOD.replace("so that tutors can help early.", dots)).purpose.endswith(
        dots
    )


class TestFiles:
    def test_load_study_reads_utf_8_with_and_without_byte_order_mark(self, tmp_path: Path) -> None:
        for mark in (b"", b"\xef\xbb\xbf"):
            (tmp_path / "study.toml").write_bytes(
                mark + GOOD.replace("course", "Kür\u200cze").encode()
            )
            assert load_study(tmp_path / "study.toml").title == "Who finishes the Kür\u200cze?"

    def test_load_study_rejects_unreadable_paths(self, tmp_path: Path) -> None:
        for path in (tmp_path / "none.toml", tmp_path, "a\0b", ""):
            with pytest.raises(SpecError) as error:
                load_study(path)
            assert error.value.code == "SPEC-001"

    def test_load_study_names_line_of_bytes_that_are_not_utf_8(self, tmp_path: Path) -> None:
        (tmp_path / "study.toml").write_bytes(b"# fine\n# caf\xe9\n")
        with pytest.raises(SpecError) as error:
            load_study(tmp_path / "study.toml")
        assert error.value.code == "SPEC-001" and "study.toml:2" in error.value.what

    def test_file_name_with_control_characters_is_escaped(self, tmp_path: Path) -> None:
        path = tmp_path / "e\x1b[31m.toml"
        for content in (
            b"title = 7",
            b"\xff",
            b"#" * (MAX_STUDY_BYTES + 1),
            b"a = " + b"[" * 100_000,
            None,
        ):
            path.write_bytes(content) if content is not None else path.unlink()
            with pytest.raises(SpecError) as error:
                load_study(path)
            assert "\x1b" not in str(error.value) and "e\\x1b[31m.toml" in str(error.value)

    def test_load_study_rejects_large_files(self, tmp_path: Path) -> None:
        (tmp_path / "study.toml").write_bytes(b"#" * (MAX_STUDY_BYTES + 1))
        with pytest.raises(SpecError) as error:
            load_study(tmp_path / "study.toml")
        assert error.value.code == "SPEC-001"


def list_every_path(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return {
        step
        for key, inner in items
        for step in ({(*path, key)} | list_every_path(inner, (*path, key)))
    }


TRICKY = '''# comment [not] = "a table"
a.b."c d".e = 1
"q\\"x" = [1, # ] here
  [2, """x
y"" z"""], {z = 'k', w.v = [3,]},
]
m = """
[no]
k = 2"""
n = \'\'\'it's""\'\'\'\'
d = 2031-01-01 00:00:00 # hi
empty = []
none = {}
[ t . "u" ]
x = -1.5e3
[[f]]
name = "a\\tb#"
[f.g]
y = true
[[f]]
name = \'b\'
[[f.h]]
z = 1
[[f.h]]
z = 2
'''


class TestLines:
    @pytest.mark.parametrize(
        "text", [TRICKY, TRICKY.replace("\n", "\r\n"), *map(read_starter, STARTER_PROTOCOLS)]
    )
    def test_key_positions_list_every_key_and_element(self, text: str) -> None:
        assert set(KeyPositions(text).list_paths()) == list_every_path(tomllib.loads(text))

    @pytest.mark.parametrize(
        ("path", "line"),
        [
            (("a", "b", "c d", "e"), 2),
            (('q"x', 0), 3),
            (('q"x', 1, 1), 4),
            (('q"x', 2, "w", "v", 0), 5),
            (("m",), 7),
            (("n",), 10),
            (("t", "u", "x"), 15),
            (("f", 0, "g", "y"), 19),
            (("f", 1, "h", 1, "z"), 25),
            (("f", 1, "nowhere", "else"), 20),
            (("t", "u", "lost"), 14),
            (("elsewhere",), 1),
            ((), 1),
        ],
    )
    def test_find_line_returns_exact_or_nearest_line(
        self, path: tuple[str | int, ...], line: int
    ) -> None:
        assert KeyPositions(TRICKY).find_line(path) == line
