"""Files of free counts: in the study's own words, and every other file refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import SpecError
from shoal.protocols.sdq.queries import Count, Histogram, Marginals
from shoal.study.load import parse
from shoal.study.query_files import MAX_BYTES, load_queries
from shoal.study.templates import study_text

SCHEMA = parse(study_text("sdq")).schema()
GOOD = """
[[query]]
kind = "count"
where = { ward = ["surgery", "medicine"], readmitted = "yes" }
[[query]]
kind = "histogram"
features = ["ward", "readmitted"]
[[query]]
kind = "marginals"
features = ["age"]
"""


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "queries.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_counts_in_the_words_of_the_study(tmp_path: Path) -> None:
    count, histogram, marginals = load_queries(written(tmp_path, GOOD), SCHEMA)
    assert count == Count.of(SCHEMA, {"ward": ["surgery", "medicine"], "readmitted": "yes"})
    assert histogram == Histogram(features=("ward", "readmitted")) and marginals == Marginals(features=("age",))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "query = 1",
        "rubbish",
        b"\xff",
        b"#" * (MAX_BYTES + 1),
        GOOD + "epsilon = 3",
        "[[query]]\nkind = 'sum'\nfeatures = ['age']",
        "[[query]]\nkind = 'histogram'\nfeatures = []",
        "[[query]]\nkind = 'histogram'\nfeatures = ['age', 3]",
        "[[query]]\nkind = 'count'",
        "[[query]]\nkind = 'count'\nwhere = { ward = 'garden' }",
        "[[query]]\nkind = 'count'\nwhere = { ward = [1] }",
        "title = 1\n" + GOOD,
    ],
)
def test_everything_else_is_refused(content: str | bytes, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="SDQ-002"):
        load_queries(written(tmp_path, content), SCHEMA)


def test_errors_name_the_line(tmp_path: Path) -> None:
    for block in ("kind = 'sum'\nfeatures = ['age']", "kind = 'count'\nwhere = { ward = 'garden' }"):
        with pytest.raises(SpecError, match=r"SDQ-002  .*queries\.toml:11  "):
            load_queries(written(tmp_path, f"{GOOD}[[query]]\n{block}"), SCHEMA)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for name in ("none", ".", "a\0b"):
        with pytest.raises(SpecError, match="SDQ-002"):
            load_queries(tmp_path / name, SCHEMA)
