"""Files of free counts: features and values of the study, and errors of malformed files."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import SpecError
from shoal.protocols.sdq.queries import CountQuery, HistogramQuery, MarginalsQuery
from shoal.study.attachments import MAX_QUERY_BYTES, load_queries
from shoal.study.loader import parse_study_text
from shoal.study.starters import read_starter

SCHEMA = parse_study_text(read_starter("sdq")).schema()
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


def write_queries(folder: Path, content: str | bytes) -> Path:
    path = folder / "queries.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_load_queries_reads_counts_histograms_and_marginals(tmp_path: Path) -> None:
    count, histogram, marginals = load_queries(write_queries(tmp_path, GOOD), SCHEMA)
    assert count == CountQuery.from_names(
        SCHEMA, {"ward": ["surgery", "medicine"], "readmitted": "yes"}
    )
    assert histogram == HistogramQuery(
        features=("ward", "readmitted")
    ) and marginals == MarginalsQuery(features=("age",))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "query = 1",
        "rubbish",
        b"\xff",
        b"#" * (MAX_QUERY_BYTES + 1),
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
def test_load_queries_rejects_malformed_files(content: str | bytes, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="SDQ-002"):
        load_queries(write_queries(tmp_path, content), SCHEMA)


def test_query_errors_name_file_and_line(tmp_path: Path) -> None:
    for block in (
        "kind = 'sum'\nfeatures = ['age']",
        "kind = 'count'\nwhere = { ward = 'garden' }",
    ):
        with pytest.raises(SpecError, match=r"SDQ-002  .*queries\.toml:11  "):
            load_queries(write_queries(tmp_path, f"{GOOD}[[query]]\n{block}"), SCHEMA)


def test_load_queries_rejects_unreadable_files(tmp_path: Path) -> None:
    for name in ("none", ".", "a\0b"):
        with pytest.raises(SpecError, match="SDQ-002"):
            load_queries(tmp_path / name, SCHEMA)
