"""The models of a study: valid combinations, defaults, and the JSON schema."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from shoal.data.schema import Categorical, Numeric, Text
from shoal.privacy.events import Unit
from shoal.study.constraints import compute_default_colluders
from shoal.study.explain import explain
from shoal.study.registry import PROTOCOLS
from shoal.study.spec import Study, make_json_schema
from shoal.study.starters import read_starter
from shoal.study.validation import parse_content, parse_study

BASE: dict[str, Any] = {
    "title": "Naps",
    "purpose": "Who naps?",
    "contact": "a@example.org",
    "protocol": "anonml",
    "label": {"name": "naps", "values": ["no", "yes"]},
    "feature": [
        {"name": "age", "range": [0, 120], "bins": [30, 60]},
        {
            "name": "kind",
            "values": ["a", "b", "c"],
            "groups": {"x": ["a", "b"], "y": ["c"]},
            "missing": False,
        },
        {"name": "height", "range": [0, 3]},
    ],
    "privacy": {"epsilon": 1},
    "participation": {"minimum": 100, "size": 1000},
}
TABLES: dict[str, dict[str, Any]] = {
    "anonml": {},
    "ddml": {},
    "sdq": {"n_databases": 100},
    "pfds": {"n_holders": 100},
}
PAPER: dict[str, dict[str, Any]] = {
    "anonml": {"n_partitions": 5, "n_subsets": 3, "subset_size": 1},
    "ddml": {},
    "sdq": {"n_databases": 100},
    "pfds": {"n_holders": 100},
}
SPLIT = [
    BASE["feature"][1],
    *({"name": name, "range": [0, 9], "missing": False} for name in ("age", "height")),
]
"""Features that trees of PFDS can split on."""


def make_document(protocol: str = "anonml", /, **changes: Any) -> dict[str, Any]:
    """Return a valid study of a protocol; changes merge into tables, and None removes a key."""
    variant = changes.get("variant", "plus")
    made = {
        **BASE,
        "protocol": protocol,
        protocol: (PAPER if variant == "paper" else TABLES)[protocol],
    }
    made["feature"] = SPLIT if (protocol, variant) == ("pfds", "paper") else BASE["feature"]
    for key, change in changes.items():
        merged = {**made.get(key, {}), **change} if isinstance(change, dict) else change
        made[key] = (
            {name: value for name, value in merged.items() if value is not None}
            if isinstance(merged, dict)
            else merged
        )
    return {key: value for key, value in made.items() if value is not None}


def find_problems(
    protocol: str = "anonml", /, **changes: Any
) -> list[tuple[str, tuple[str | int, ...]]]:
    """Return the codes and keys of all problems."""
    try:
        parse_study(make_document(protocol, **changes))
    except ValidationError as error:
        return [(problem.code, problem.path) for problem in explain(error)]
    return []


@pytest.mark.parametrize("variant", ["plus", "paper"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("trust", ["local", "shuffled", "secure-sum"])
def test_only_listed_combinations_of_variant_and_trust_are_valid(
    protocol: str, variant: str, trust: str
) -> None:
    allowed = {
        ("anonml", "local"),
        ("anonml", "shuffled"),
        ("ddml", "local"),
        ("sdq", "secure-sum"),
        ("pfds", "local"),
        ("pfds", "secure-sum"),
    }
    if variant == "paper":
        allowed = {
            ("anonml", "local"),
            ("ddml", "local"),
            ("sdq", "secure-sum"),
            ("sdq", "local"),
            ("pfds", "local"),
        }
    more: dict[str, Any] = (
        {"privacy": {"delta": 1e-6}, "participation": {"honest_share": 0.9}}
        if trust == "shuffled"
        else {}
    )
    problems = find_problems(protocol, variant=variant, trust=trust, **more)
    assert (problems == []) == ((protocol, trust) in allowed)
    assert (protocol, trust) in allowed or ("SPEC-020", ("trust",)) in problems


@pytest.mark.parametrize(
    ("protocol", "trust", "unit"),
    [
        ("anonml", "local", "person"),
        ("ddml", "local", "update"),
        ("sdq", "secure-sum", "record"),
        ("pfds", "local", "record"),
    ],
)
def test_defaults_follow_from_the_protocol(protocol: str, trust: str, unit: str) -> None:
    study = parse_study(make_document(protocol))
    assert (study.trust, study.privacy.unit, study.variant, study.privacy.delta) == (
        trust,
        unit,
        "plus",
        0.0,
    )
    assert study.unit is Unit(unit) and study.max_rows == 1


def test_person_column_makes_the_person_the_unit() -> None:
    for protocol in ("sdq", "pfds"):
        study = parse_study(
            make_document(protocol, data={"person": "patient", "max_rows_per_person": 3})
        )
        assert study.unit is Unit.PERSON and study.max_rows == 3


def test_protocol_tables_have_their_defaults() -> None:
    plus, paper = (
        parse_study(make_document("ddml", ddml=None)).ddml,
        parse_study(make_document("ddml", variant="paper")).ddml,
    )
    assert plus is not None and (plus.merge, plus.admission, plus.link) == (
        "blend",
        "signed",
        "logit",
    )
    assert paper is not None and (paper.merge, paper.admission) == ("discard", "signed")
    assert (plus.averaging, plus.centred, paper.averaging, paper.centred) == (
        True,
        True,
        False,
        False,
    )
    assert (plus.learning_rate, plus.clip, plus.fraction_bits, plus.batch_size, plus.decay) == (
        None,
        None,
        20,
        10,
        "none",
    )
    number = parse_study(make_document("ddml", label={"range": [0, 1], "values": None})).ddml
    assert number is not None and number.link == "identity"
    classes = parse_study(make_document("ddml", label={"values": ["a", "b", "c"]})).ddml
    assert classes is not None and classes.link == "multinomial"
    local, summed = (
        parse_study(make_document("pfds")).pfds,
        parse_study(make_document("pfds", trust="secure-sum")).pfds,
    )
    assert (
        local is not None
        and summed is not None
        and (local.max_colluders, summed.max_colluders) == (0, 34)
    )


@pytest.mark.parametrize(("n", "expected"), [(2, 0), (3, 1), (4, 1), (5, 2), (10, 4), (100, 34)])
def test_default_colluders_are_a_third_and_less_than_half(n: int, expected: int) -> None:
    assert compute_default_colluders(n) == expected


def test_schema_contains_features_bins_groups_and_label() -> None:
    schema = parse_study(make_document()).schema()
    assert schema["age"] == Numeric("age", 0, 120, bins=(30, 60))
    assert schema["kind"] == Categorical(
        "kind", ("a", "b", "c"), groups={"x": ("a", "b"), "y": ("c",)}, missing=False
    )
    assert schema.label == Categorical("naps", ("no", "yes"), missing=False)
    assert parse_study(
        make_document("pfds", label={"values": None, "range": [0, 9]})
    ).schema().label == Numeric("naps", 0, 9, missing=False)


def test_schema_separates_texts_from_features() -> None:
    schema = parse_study(
        make_document(
            "ddml", feature=[{"name": "note", "buckets": 100, "missing": False}, BASE["feature"][0]]
        )
    ).schema()
    assert schema.names == ("age",) and schema.texts == (Text("note", 100, 3, missing=False),)


def test_written_default_of_ngrams_does_not_change_the_study() -> None:
    short, long = (
        parse_study(make_document("ddml", feature=[{"name": "note", "buckets": 100, **more}]))
        for more in ({}, {"ngrams": 3})
    )
    assert (
        short == long and short.to_content() == long.to_content() and short.feature[0].ngrams == 3
    )
    assert (
        parse_study(make_document("ddml", feature=[{"name": "note", "buckets": 100, "ngrams": 1}]))
        .schema()
        .texts[0]
        .ngrams
        == 1
    )


def test_content_without_texts_omits_their_keys() -> None:
    assert all(
        not {"buckets", "ngrams"} & set(feature)
        for feature in parse_study(make_document()).to_content()["feature"]
    )


def test_crosses_accept_numbers_and_texts() -> None:
    features = [*BASE["feature"], {"name": "note", "buckets": 100}]
    assert (
        find_problems(
            "ddml",
            feature=features,
            ddml={"crosses": [["age", "height"], ["height", "note"], ["note", "kind"]]},
        )
        == []
    )


def test_missing_ddml_table_is_filled_in() -> None:
    assert (
        parse_study({**make_document("ddml"), "ddml": None}).ddml
        == parse_study(make_document("ddml")).ddml
    )


def test_problem_of_too_many_weights_gives_the_number() -> None:
    with pytest.raises(ValidationError) as error:
        parse_study(
            make_document(
                "ddml",
                label={"values": ["a", "b", "c"]},
                feature=[{"name": "note", "buckets": 400_000}],
            )
        )
    [problem] = explain(error.value)
    assert problem.what == "The model has 1,200,003 weights; at most 1,048,576 can be learned."
    wide = [{"name": name, "values": [str(i) for i in range(2000)]} for name in ("u", "v")]
    assert ("SPEC-021", ("ddml", "crosses")) in find_problems(
        "ddml", feature=wide, ddml={"crosses": [["u", "v"]]}
    )


def test_groups_are_numbered_by_name() -> None:
    turned = {**BASE["feature"][1], "groups": {"y": ["c"], "x": ["a", "b"]}}
    feature = parse_study(make_document(feature=[turned])).schema().features[0]
    assert isinstance(feature, Categorical) and list(feature.groups or ()) == ["x", "y"]


FEATURE = BASE["feature"][0]
NOTE = {"name": "note", "buckets": 100}
QUERY = {"n_queries": 1, "epsilon_release": 1}


@pytest.mark.parametrize(
    ("protocol", "changes", "code", "path"),
    [
        ("anonml", {"feature": [{"name": "age"}]}, "SPEC-022", ("feature", 0, "name")),
        (
            "anonml",
            {"feature": [{**FEATURE, "values": ["a", "b"]}]},
            "SPEC-022",
            ("feature", 0, "name"),
        ),
        (
            "anonml",
            {"feature": [{**FEATURE, "groups": {"x": ["a"]}}]},
            "SPEC-022",
            ("feature", 0, "groups"),
        ),
        (
            "anonml",
            {"feature": [{"name": "k", "values": ["a", "b"], "bins": [1]}]},
            "SPEC-022",
            ("feature", 0, "bins"),
        ),
        (
            "anonml",
            {"feature": [{"name": "age", "range": [9, 3]}]},
            "SCHEMA-002",
            ("feature", 0, "range"),
        ),
        (
            "anonml",
            {"feature": [FEATURE, {**FEATURE, "name": "b", "bins": [7, 7]}]},
            "SCHEMA-003",
            ("feature", 1, "bins"),
        ),
        (
            "anonml",
            {"feature": [{"name": "k", "values": ["a"]}]},
            "SCHEMA-004",
            ("feature", 0, "values"),
        ),
        (
            "anonml",
            {"feature": [{"name": "k", "values": ["a", "b"], "groups": {"x": ["a"]}}]},
            "SCHEMA-005",
            ("feature", 0, "groups"),
        ),
        ("anonml", {"feature": [FEATURE, FEATURE]}, "SCHEMA-001", ("feature", 1, "name")),
        (
            "anonml",
            {"feature": [{**FEATURE, "name": "naps"}]},
            "SCHEMA-001",
            ("feature", 0, "name"),
        ),
        ("anonml", {"label": {"range": [0, 1], "values": None}}, "SPEC-021", ("label", "range")),
        ("sdq", {"label": {"range": [0, 1], "values": None}}, "SPEC-021", ("label", "range")),
        ("anonml", {"privacy": {"unit": "record"}}, "SPEC-020", ("privacy", "unit")),
        ("ddml", {"privacy": {"unit": "person"}}, "SPEC-020", ("privacy", "unit")),
        ("sdq", {"privacy": {"unit": "person"}}, "SPEC-011", ("privacy", "unit")),
        (
            "sdq",
            {"privacy": {"unit": "record"}, "data": {"person": "p", "max_rows_per_person": 1}},
            "SPEC-022",
            ("privacy", "unit"),
        ),
        ("anonml", {"data": {"person": "p", "max_rows_per_person": 1}}, "SPEC-022", ("data",)),
        (
            "sdq",
            {"data": {"person": "age", "max_rows_per_person": 1}},
            "SPEC-021",
            ("data", "person"),
        ),
        ("anonml", {"privacy": {"n_updates": 2}}, "SPEC-022", ("privacy", "n_updates")),
        ("anonml", {"privacy": {"delta": 1e-6}}, "SPEC-022", ("privacy", "delta")),
        ("sdq", {"privacy": {"delta": 1e-6}}, "SPEC-022", ("privacy", "delta")),
        ("pfds", {"privacy": {"delta": 1e-6}}, "SPEC-022", ("privacy", "delta")),
        ("ddml", {"privacy": {"delta": 1e-6, "unit": "weight"}}, "SPEC-022", ("privacy", "delta")),
        (
            "anonml",
            {"trust": "shuffled", "participation": {"honest_share": 0.9}},
            "SPEC-011",
            ("privacy",),
        ),
        (
            "anonml",
            {"trust": "shuffled", "privacy": {"delta": 1e-6}},
            "SPEC-011",
            ("participation",),
        ),
        (
            "anonml",
            {"participation": {"honest_share": 0.9}},
            "SPEC-022",
            ("participation", "honest_share"),
        ),
        ("anonml", {"participation": {"minimum": 2000}}, "SPEC-021", ("participation", "minimum")),
        ("anonml", {"sdq": {"n_databases": 3}}, "SPEC-022", ("sdq",)),
        ("sdq", {"sdq": None}, "SPEC-011", ()),
        ("anonml", {"variant": "paper", "anonml": None}, "SPEC-011", ()),
        ("anonml", {"variant": "paper", "anonml": {"n_subsets": None}}, "SPEC-011", ("anonml",)),
        ("anonml", {"anonml": {"n_subsets": 2}}, "SPEC-022", ("anonml", "n_subsets")),
        ("anonml", {"anonml": {"accounting": "paper"}}, "SPEC-022", ("anonml", "accounting")),
        ("anonml", {"anonml": {"classifier": "tree"}}, "SPEC-022", ("anonml", "classifier")),
        ("anonml", {"anonml": {"score": "auc"}}, "SPEC-022", ("anonml", "score")),
        (
            "anonml",
            {"variant": "paper", "anonml": {"score": "f2"}},
            "SPEC-013",
            ("anonml", "score"),
        ),
        (
            "anonml",
            {"variant": "paper", "anonml": {"n_subsets": 2, "subset_size": 2}},
            "SPEC-021",
            ("anonml", "n_subsets"),
        ),
        (
            "anonml",
            {"variant": "paper", "anonml": {"n_subsets": 1, "subset_size": 4}},
            "SPEC-021",
            ("anonml", "n_subsets"),
        ),
        ("ddml", {"variant": "paper", "ddml": {"merge": "blend"}}, "SPEC-022", ("ddml", "merge")),
        ("ddml", {"ddml": {"link": "identity"}}, "SPEC-021", ("ddml", "link")),
        ("ddml", {"ddml": {"n_instances": 200}}, "SPEC-021", ("ddml", "n_instances")),
        ("ddml", {"ddml": {"crosses": [["age", "nope"]]}}, "SPEC-021", ("ddml", "crosses", 0)),
        (
            "ddml",
            {"ddml": {"crosses": [["age", "kind"], ["age", "age"]]}},
            "SPEC-021",
            ("ddml", "crosses", 1),
        ),
        (
            "ddml",
            {"ddml": {"crosses": [["age", "kind"], ["kind", "age"]]}},
            "SPEC-021",
            ("ddml", "crosses", 1),
        ),
        (
            "ddml",
            {"feature": [FEATURE, {**FEATURE, "name": "b", "bins": [], "missing": False}]},
            "SPEC-021",
            ("feature", 1, "bins"),
        ),
        ("ddml", {"ddml": {"decay": "linear"}}, "SPEC-013", ("ddml", "decay")),
        ("ddml", {"ddml": {"clip": 5e-324}}, "SPEC-013", ("ddml", "clip")),
        ("ddml", {"ddml": {"learning_rate": 0.9e-9}}, "SPEC-013", ("ddml", "learning_rate")),
        ("ddml", {"ddml": {"averaging": 1}}, "SPEC-012", ("ddml", "averaging")),
        ("ddml", {"feature": [{**NOTE, "buckets": 1}]}, "SPEC-013", ("feature", 0, "buckets")),
        ("ddml", {"feature": [{**NOTE, "ngrams": 4}]}, "SPEC-013", ("feature", 0, "ngrams")),
        ("ddml", {"feature": [{**NOTE, "values": ["a", "b"]}]}, "SPEC-022", ("feature", 0, "name")),
        ("ddml", {"feature": [{**NOTE, "bins": [1]}]}, "SPEC-022", ("feature", 0, "bins")),
        (
            "ddml",
            {"feature": [{**NOTE, "groups": {"x": ["a"]}}]},
            "SPEC-022",
            ("feature", 0, "groups"),
        ),
        ("ddml", {"feature": [{**FEATURE, "ngrams": 3}]}, "SPEC-022", ("feature", 0, "ngrams")),
        ("ddml", {"feature": [NOTE, {**NOTE, "buckets": 9}]}, "SCHEMA-001", ("feature", 1, "name")),
        ("ddml", {"label": {"values": None, "buckets": 100}}, "SPEC-010", ("label", "buckets")),
        ("ddml", {"feature": [{**NOTE, "buckets": 1 << 20}]}, "SPEC-021", ("feature",)),
        (
            "ddml",
            {"feature": [NOTE, FEATURE], "queries": {**QUERY, "features": ["note"]}},
            "SPEC-021",
            ("queries", "features", 0),
        ),
        ("anonml", {"feature": [NOTE]}, "SPEC-022", ("feature", 0, "buckets")),
        ("sdq", {"feature": [NOTE]}, "SPEC-022", ("feature", 0, "buckets")),
        ("pfds", {"feature": [FEATURE, NOTE]}, "SPEC-022", ("feature", 1, "buckets")),
        (
            "anonml",
            {
                "trust": "shuffled",
                "queries": {"features": ["age"], "n_queries": 1, "epsilon_release": 1},
            },
            "SPEC-022",
            ("queries",),
        ),
        (
            "anonml",
            {"queries": {"features": ["nope"], "n_queries": 1, "epsilon_release": 1}},
            "SPEC-021",
            ("queries", "features", 0),
        ),
    ],
)
def test_conflicting_settings_are_named_by_code_and_key(
    protocol: str, changes: dict[str, Any], code: str, path: tuple[str | int, ...]
) -> None:
    assert (code, path) in find_problems(protocol, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"variant": "paper", "anonml": {"n_subsets": 3, "subset_size": 1, "accounting": "paper"}},
        {"queries": {"features": ["naps", "age"], "n_queries": 3, "epsilon_release": 0.1}},
        {"trust": "shuffled", "privacy": {"delta": 1e-6}, "participation": {"honest_share": 1}},
    ],
)
def test_compatible_settings_are_accepted(changes: dict[str, Any]) -> None:
    assert find_problems("anonml", **changes) == []


def test_parse_study_reports_all_problems_together() -> None:
    problems = find_problems(
        "anonml",
        trust="secure-sum",
        privacy={"unit": "record", "delta": 1e-6},
        feature=[{"name": "age", "range": [9, 3]}],
    )
    assert {code for code, _ in problems} == {"SCHEMA-002", "SPEC-020", "SPEC-022"} and len(
        problems
    ) == 4


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("privacy", "epsilon"), "2"),
        (("privacy", "epsilon"), True),
        (("privacy", "epsilon"), float("nan")),
        (("privacy", "epsilon"), float("inf")),
        (("privacy", "epsilon"), 0),
        (("privacy", "epsilon"), 65),
        (("privacy", "epsilon"), 10**400),
        (("privacy", "delta"), -1e-9),
        (("participation", "minimum"), 100.0),
        (("participation", "minimum"), True),
        (("participation", "minimum"), 10**400),
        (("participation", "closes"), "2031-01-01"),
        (("title",), ""),
        (("title",), "x" * 201),
        (("title",), "a\x1b[2Jb"),
        (("title",), "a\u202eb"),
        (("title",), 7),
        (("purpose",), "a\x00b"),
        (("spec",), True),
        (("spec",), 2),
        (("feature",), []),
        (("feature",), "age"),
        (("label", "values"), ["no", True]),
        (("label", "values"), "no"),
        (("protocol",), "anon"),
        (("variant",), ["plus"]),
    ],
)
def test_parse_study_rejects_values_of_wrong_type_or_range(
    path: tuple[str, ...], value: Any
) -> None:
    change = {path[0]: {path[1]: value}} if len(path) == 2 else {path[0]: value}
    assert find_problems("anonml", **change)


def test_integers_become_floats_and_minus_zero_becomes_zero() -> None:
    study = parse_study(
        make_document(privacy={"epsilon": 2}, feature=[{"name": "t", "range": [-0.0, 5]}])
    )
    assert repr(study.privacy.epsilon) == "2.0" and repr(study.feature[0].range) == "(0.0, 5.0)"


def test_parse_content_inverts_to_content() -> None:
    for protocol in TABLES:
        study = parse_study(make_document(protocol))
        assert parse_content(study.to_content()) == study


def test_committed_json_schema_is_current() -> None:
    committed = Path(__file__).parents[3] / "docs/reference/study.schema.json"
    assert json.loads(committed.read_text("utf-8")) == make_json_schema()


def test_module_prints_the_json_schema() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shoal.study.spec"], capture_output=True, check=True, text=True
    )
    assert json.loads(done.stdout) == make_json_schema()
    properties = json.loads(done.stdout)["properties"]
    assert {"title", "feature", "privacy", "sdq"} <= set(properties)
    assert make_json_schema()["required"] == [
        "title",
        "purpose",
        "contact",
        "protocol",
        "label",
        "feature",
        "privacy",
        "participation",
    ]


class TestReference:
    PAGE = (Path(__file__).parents[3] / "docs/reference/study.md").read_text("utf-8")

    @pytest.mark.parametrize("name", [name for name, field in Study.model_fields.items()])
    def test_page_explains_every_top_level_key(self, name: str) -> None:
        assert (
            f"| `{name}` |" in self.PAGE
            or f"`[{name}]`" in self.PAGE
            or f"`[[{name}]]`" in self.PAGE
        )

    @pytest.mark.parametrize(
        ("title", "table"), [(title, table) for title, table in make_json_schema()["$defs"].items()]
    )
    def test_page_explains_every_key_of_a_table(self, title: str, table: dict[str, Any]) -> None:
        assert all(f"| `{key}` |" in self.PAGE for key in table["properties"]), title

    @pytest.mark.parametrize("protocol", TABLES)
    def test_page_shows_the_starter_studies(self, protocol: str) -> None:
        assert f"```toml\n{read_starter(protocol)}```" in self.PAGE
