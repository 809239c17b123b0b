"""Hostile study files and manifests: any bytes give a study, a manifest or a `ShoalError`."""

from __future__ import annotations

import copy
import json
import tomllib
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.errors import ShoalError
from shoal.messages import codec
from shoal.privacy.rounding import GRAINS, grains_down, grains_up
from shoal.study.loader import StudyError, load_study, parse_study_text
from shoal.study.manifest import Manifest, RosterMember
from shoal.study.plan import find_warnings, make_plan
from shoal.study.positions import KeyPositions
from shoal.study.spec import Study
from shoal.study.starters import STARTER_PROTOCOLS, read_starter
from tests.support.hostile import hostile

TEXTS = [read_starter(protocol) for protocol in STARTER_PROTOCOLS]
MARKS = [
    '"',
    "'",
    '"""',
    "'''",
    "[",
    "]",
    "[[",
    "{",
    "}",
    "=",
    ".",
    ",",
    "#",
    "\n",
    "\r",
    "\0",
    "\x1b[2J",
    "\u202e",
    "\ufeff",
    "\ud7ff",
]
NUMBERS = [
    "true",
    "nan",
    "-inf",
    "1e999",
    "-0.0",
    "2031-01-31",
    "2031-99-99",
    "12:00:00",
    "0001-01-01T00:00:00+14:00",
    "9" * 30,
    "9" * 5000,
    "0x" + "f" * 40,
]
LINES = """[privacy]
[[feature]]
[feature]
trust = "shuffled"
variant = "paper"
protocol = "sdq"
unit = "weight"
delta = 1e-6
epsilon = 64
epsilon = 1e-9
honest_share = 0.5
minimum = 0
size = 1
n_updates = 9
max_colluders = 9
n_databases = 3
learner = "naive-bayes"
choice = "sums"
noise = "two-selected"
depth = 16""".splitlines(keepends=True)
DEEP = [
    "a." * 30,
    "[" * 200,
    "{a=" * 50,
    "[anonml]\nn_partitions = 2\nn_subsets = 1\nsubset_size = 1\n",
]
SNIPPETS = st.sampled_from(MARKS + NUMBERS + LINES + DEEP)


def check_study(text: str) -> None:
    """Do everything that a participant does with a study file, up to the label."""
    try:
        study = parse_study_text(text)
    except ShoalError as error:
        str(error)
        return
    with suppress(ShoalError):
        plan = make_plan(study)
        str(plan.make_statement())
        plan.to_dict()
        find_warnings(plan, datetime(2030, 1, 1, tzinfo=UTC))
    manifest = Manifest(study)
    assert Manifest.from_bytes(manifest.to_bytes()).digest == manifest.digest


@st.composite
def mutated_texts(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 0, 1, 2, 5, 20, 100])))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            text = text[:start] + text[end:]
        elif kind == 1:
            text = text[:start] + draw(SNIPPETS) + text[end:]
        elif kind == 2:
            text = text[:start] + text[start:end] * 2 + text[end:]
        else:
            lines = text.split("\n")
            lines.insert(draw(st.integers(0, len(lines) - 1)), draw(SNIPPETS))
            text = "\n".join(lines)
    return text


@hostile()
@given(mutated_texts())
def test_mutated_study_is_valid_or_raises(text: str) -> None:
    check_study(text)


@hostile()
@given(st.text(max_size=300) | st.lists(SNIPPETS, max_size=12).map("".join))
def test_rubbish_text_as_study_raises(text: str) -> None:
    check_study(text)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies") / "study.toml"


@hostile()
@given(
    data=st.binary(max_size=400)
    | mutated_texts().map(lambda text: text.encode("utf-8", "surrogatepass")[:-3] + b"\xff")
)
def test_rubbish_bytes_as_study_raise(data: bytes, scratch: Path) -> None:
    scratch.write_bytes(data)
    with suppress(ShoalError):
        load_study(scratch)


EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-14))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.sampled_from([datetime(1, 1, 1, tzinfo=EAST), datetime(9999, 12, 31, 23, 59, tzinfo=WEST)])
    | st.sampled_from(
        [
            datetime(2031, 1, 1, tzinfo=UTC),
            datetime(2031, 1, 1),
            date(2031, 1, 1),
            0,
            1,
            2,
            1.0,
            "",
            "yes",
            "age",
            "weight",
        ]
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        "epsilon",
        "delta",
        "unit",
        "name",
        "range",
        "bins",
        "values",
        "groups",
        "missing",
        "trust",
        "variant",
        "zzz",
        "a b",
        "",
    ]
)


def list_positions(value: Any) -> list[tuple[Any, Any]]:
    """Return every container of a document with a key or a position in it."""
    steps = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    return [(value, key) for key, _ in steps] + [
        place for _, inner in steps for place in list_positions(inner)
    ]


@st.composite
def wrong_documents(draw: st.DrawFn) -> dict[str, Any]:
    document: dict[str, Any] = copy.deepcopy(tomllib.loads(draw(st.sampled_from(TEXTS))))
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(list_positions(document)))
        if key not in container and not isinstance(container, list):
            continue
        if draw(st.integers(0, 4)) == 0 and isinstance(container, dict):
            del container[key]
        elif draw(st.booleans()) and isinstance(container, dict):
            container[draw(KEYS)] = draw(VALUES)
        elif isinstance(container, dict) or key < len(container):
            container[key] = draw(VALUES)
    return document


def to_toml(value: Any) -> str:
    """Return an inline TOML value."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(
                f"{json.dumps(key)} = {to_toml(inner)}"
                for key, inner in value.items()
                if inner is not None
            )
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(to_toml(inner) for inner in value if inner is not None) + "]"
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    return str(value).lower()


def to_toml_document(document: dict[str, Any]) -> str:
    """Return a document as TOML, with tables and lists of tables as sections if possible."""
    plain, sections = [], []
    for key, value in document.items():
        name = json.dumps(key)
        if isinstance(value, dict):
            sections.append(
                f"[{name}]\n"
                + "".join(
                    f"{json.dumps(k)} = {to_toml(v)}\n" for k, v in value.items() if v is not None
                )
            )
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            for item in value:
                sections.append(
                    f"[[{name}]]\n"
                    + "".join(
                        f"{json.dumps(k)} = {to_toml(v)}\n"
                        for k, v in item.items()
                        if v is not None
                    )
                )
        elif value is not None:
            plain.append(f"{name} = {to_toml(value)}\n")
    return "".join(plain + sections)


@hostile()
@given(wrong_documents())
def test_study_with_values_of_wrong_kind_raises(document: dict[str, Any]) -> None:
    text = to_toml_document(document)
    check_study(text)
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(KeyPositions(text).list_paths()) == list_paths(parsed)


def list_paths(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return {
        step for key, inner in items for step in ({(*path, key)} | list_paths(inner, (*path, key)))
    }


@hostile()
@given(mutated_texts())
def test_line_scanner_agrees_with_toml_parser(text: str) -> None:
    try:
        parsed = tomllib.loads(text)
    except (ValueError, RecursionError):
        return
    assert set(KeyPositions(text).list_paths()) == list_paths(parsed)


@hostile(60)
@given(st.sampled_from(TEXTS), st.randoms(use_true_random=False))
def test_digest_does_not_depend_on_order_of_keys(text: str, random: Any) -> None:
    def shuffle(value: Any) -> Any:
        if not isinstance(value, dict):
            return [shuffle(item) for item in value] if isinstance(value, list) else value
        keys = list(value)
        random.shuffle(keys)
        return {key: shuffle(value[key]) for key in keys}

    other = parse_study_text(to_toml_document(shuffle(tomllib.loads(text))))
    assert Manifest(other).digest == Manifest(parse_study_text(text)).digest


FEW = st.integers(2, 40)
SIZES = st.sampled_from([10, 300, 10_000, 10**6, 10**9])


@st.composite
def sdq_documents(draw: st.DrawFn) -> dict[str, Any]:
    """Generate studies of SDQ, most of them valid."""
    document: dict[str, Any] = tomllib.loads(read_starter("sdq"))
    variant, n = draw(st.sampled_from(["plus", "paper"])), draw(FEW)
    learner = draw(st.sampled_from(["tree", "naive-bayes"])) if variant == "plus" else "tree"
    trust = (
        draw(st.sampled_from(["secure-sum", "secure-sum", "local"]))
        if variant == "paper"
        else "secure-sum"
    )
    table: dict[str, Any] = {"n_databases": n, "learner": learner}
    if learner == "tree" and draw(st.booleans()):
        table["depth"] = draw(st.integers(1, 16))
    if variant == "plus" and learner == "tree" and draw(st.booleans()):
        table["choice"] = draw(st.sampled_from(["mpc", "sums"]))
    if trust == "secure-sum":
        table["max_colluders"] = draw(st.integers(0, n // 2))
        table["noise"] = (
            draw(st.sampled_from(["all-contribute", "two-selected"]))
            if variant == "paper"
            else "all-contribute"
        )
    kept = draw(st.sets(st.integers(0, 3), min_size=1))
    more = {
        "variant": variant,
        "trust": trust,
        "sdq": table,
        "feature": [document["feature"][i] for i in sorted(kept)],
        "privacy": {"epsilon": draw(st.floats(1e-4, 64) | st.sampled_from([0.005, 0.1, 1.0, 3.0]))},
        "participation": {"minimum": draw(st.sampled_from([n, n, n, n - 1])), "size": draw(SIZES)},
    }
    if draw(st.booleans()):
        del document["data"]
    return document | more


@hostile()
@given(sdq_documents())
def test_sdq_study_costs_exactly_its_epsilon(document: dict[str, Any]) -> None:
    try:
        study = parse_study_text(to_toml_document(document))
    except StudyError:
        return
    plan = make_plan(study)
    spent = sum(release.count * grains_up(release.event.epsilon) for release in plan.releases)
    allowed = grains_down(study.privacy.epsilon)
    # Each release is rounded down by less than a grain.
    assert allowed - sum(release.count for release in plan.releases) <= spent <= allowed
    assert (
        grains_up(plan.loss.epsilon) == spent
        and plan.loss.delta == 0
        and GRAINS * plan.make_statement().epsilon >= spent * (1 - 1e-12)
    )
    assert (
        0 < plan.forecasts[0].value < float("inf")
        and "counts of your database's rows" in plan.make_statement().leaves
    )


BYTES = [Manifest(parse_study_text(text)).to_bytes() for text in TEXTS]


@hostile()
@given(
    st.sampled_from(BYTES),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 40),
)
def test_mutated_manifest_is_valid_or_raises(
    data: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    changed = bytearray(data)
    for place, value in changes:
        changed[place % len(changed)] = value
    changed = changed[: len(changed) - cut] if cut < 20 else changed
    try:
        manifest = Manifest.from_bytes(bytes(changed))
    except ShoalError as error:
        str(error)
        return
    assert manifest.to_bytes() == changed


@hostile()
@given(st.sampled_from(BYTES), st.data())
def test_manifest_with_values_of_wrong_kind_raises(data: bytes, draw: st.DataObject) -> None:
    def lists(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: lists(inner) for key, inner in value.items()}
        return [lists(inner) for inner in value] if isinstance(value, tuple) else value

    content: Any = lists(codec.loads(data))
    container, key = draw.draw(st.sampled_from(list_positions(content)))
    container[key] = draw.draw(VALUES.filter(lambda value: not isinstance(value, (datetime, date))))
    with suppress(ShoalError):
        Manifest.from_bytes(codec.dumps(content))


@hostile()
@given(st.datetimes(timezones=st.none() | st.sampled_from([UTC, EAST, WEST])))
@example(datetime(1, 1, 1, tzinfo=EAST))
@example(datetime(9999, 12, 31, 23, 59, tzinfo=WEST))
def test_manifest_with_any_closing_time_is_valid_or_raises(closes: datetime) -> None:
    content: Any = codec.loads(BYTES[0])
    content["study"]["participation"]["closes"] = closes.isoformat()
    with suppress(ShoalError):
        manifest = Manifest.from_bytes(codec.dumps(content))
        str(make_plan(manifest.study).make_statement())


@hostile()
@given(st.binary(max_size=200))
@example(b"")
def test_rubbish_as_manifest_raises(data: bytes) -> None:
    with pytest.raises(ShoalError):
        Manifest.from_bytes(data)


@hostile()
@given(st.text(max_size=20) | st.none(), st.binary(min_size=31, max_size=33), st.text(max_size=40))
def test_manifest_with_strange_members_and_addresses_is_valid_or_raises(
    name: Any, key: bytes, relay: str
) -> None:
    with suppress(ShoalError):
        RosterMember(name, key)
    with suppress(ShoalError):
        Manifest(parse_study_text(TEXTS[0]), relay=relay)
    with suppress(ShoalError):
        Manifest(parse_study_text(TEXTS[0]), relay="https://" + relay)


def test_first_problem_is_first_of_list() -> None:
    with pytest.raises(StudyError) as error:
        parse_study_text("")
    assert (
        len(error.value.problems) == 8
        and error.value.problems[0] == f"{error.value.code}  {error.value.what}"
    )
    assert Study.model_fields.keys() >= {"title", "feature"}
