"""Trees as text and as pictures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.errors import UsageError
from shoal.protocols.sdq.model import DecisionTree
from shoal.protocols.sdq.paper import grow_tree
from shoal.protocols.sdq.tree_view import _measure_width
from tests.support.sdq import make_schema

SVG = "{http://www.w3.org/2000/svg}"
SCHEMA = Schema(
    [
        Numeric("age", 0, 90, bins=[30]),
        Categorical("a <b> & 'c'", ['"x"', "y\x1b[2J\nw", "z" * 50], missing=False),
    ],
    label=Categorical("ill", ["<no>", "yes"]),
)
TREE = DecisionTree(
    SCHEMA,
    np.array([0, -1, 1, -1, -1, -1, -1]),
    np.array([1, -1, 4, -1, -1, -1, -1]),
    np.array([[60.2, 40], [30, -2.6], [20, 30], [10, 12], [1, 2], [math.nan] * 2, [3, 4]]),
    np.array([[0.6, 0.4], [1, 0], [0.4, 0.6], [0.5, 0.5], [0.3, 0.7], [0.2, 0.8], [0.4, 0.6]]),
)


def make_full_tree(arities: tuple[int, ...]) -> DecisionTree:
    """Return a tree with all attributes in order on each path."""
    choices: tuple[int, ...] = ()
    n_nodes = 1
    for depth, arity in enumerate((*arities, 0)):
        choices += (depth if arity else -1,) * n_nodes
        n_nodes *= arity
    growth = grow_tree(choices, arities, 2, len(arities))
    counts = np.ones((len(growth.splits), 2))
    return DecisionTree(
        make_schema(arities, 2), growth.splits, growth.first_children, counts, counts / 2
    )


def test_to_text_escapes_and_cuts_lines() -> None:
    assert TREE.to_text(width=60).splitlines() == [
        "age?  [<no> 60, yes 40]",
        "├─ <= 30 → <no>  [<no> 30, yes -3]",
        "├─ > 30: a <b> & 'c'?  [<no> 20, yes 30]",
        '│  ├─ "x" → yes  [<no> 1, yes 2]',
        "│  ├─ 'y\\x1b[2J\\nw' → yes",
        "│  └─ " + "z" * 50 + " → …",
        "└─ missing → <no>  [<no> 10, yes 12]",
    ]


def test_to_text_is_cut_at_a_depth() -> None:
    assert (
        TREE.to_text(max_depth=1).splitlines()[2]
        == "├─ > 30 → yes  [<no> 20, yes 30]  … 3 nodes below"
    )
    assert TREE.to_text(max_depth=0) == "→ <no>  [<no> 60, yes 40]  … 6 nodes below"
    assert TREE.to_text(max_depth=2) == TREE.to_text()


def test_single_leaf_is_one_line() -> None:
    leaf = DecisionTree(
        SCHEMA, np.array([-1]), np.array([-1]), np.array([[1.0, 2]]), np.array([[0.4, 0.6]])
    )
    assert leaf.to_text() == "→ yes  [<no> 1, yes 2]"
    picture = ElementTree.fromstring(leaf.to_svg())
    assert [text.text for text in picture.iter(f"{SVG}text")] == ["yes", "<no> 1, yes 2"]


def test_svg_contains_all_words_of_the_text() -> None:
    picture = ElementTree.fromstring(TREE.to_svg())
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    for said in (
        "age?",
        "a <b> & 'c'?",
        "<no>",
        "yes",
        "<= 30",
        "> 30",
        "missing",
        '"x"',
        "'y\\x1b[2J\\nw'",
        "<no> 30, yes -3",
    ):
        assert said in texts
    assert any(text and text.startswith("zzz") and text.endswith("…") for text in texts)
    title = picture.find(f"{SVG}title")
    assert title is not None and title.text == "A decision tree for ill"
    assert len(list(picture.iter(f"{SVG}path"))) == 6
    assert not any("dash" in name for rect in picture.iter(f"{SVG}rect") for name in rect.attrib)


def test_svg_refers_to_no_other_file() -> None:
    picture = TREE.to_svg()
    kinds = {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(picture).iter()}
    assert kinds == {"svg", "title", "rect", "path", "text"}
    assert "href" not in picture and "url(" not in picture
    assert picture.count("http") == 1  # the name of the format


def test_svg_boxes_do_not_overlap_and_are_inside() -> None:
    picture = ElementTree.fromstring(make_full_tree((3, 2, 4)).to_svg())
    boxes = [rect for rect in picture.iter(f"{SVG}rect") if rect.get("rx")]
    assert len(boxes) == 1 + 3 + 6 + 24
    places = [(float(box.attrib["x"]), float(box.attrib["y"])) for box in boxes]
    width, height = float(boxes[0].attrib["width"]), float(boxes[0].attrib["height"])
    for i, (x, y) in enumerate(places):
        assert 0 <= x <= float(picture.attrib["width"]) - width
        assert 0 <= y <= float(picture.attrib["height"]) - height
        assert all(
            abs(x - other[0]) >= width or abs(y - other[1]) >= height for other in places[:i]
        )


def test_svg_of_a_large_tree_shows_the_top_and_says_so() -> None:
    tree = make_full_tree((3, 2, 4))
    picture = ElementTree.fromstring(tree.to_svg(max_nodes=15))
    boxes = [rect for rect in picture.iter(f"{SVG}rect") if rect.get("rx")]
    assert len(boxes) == 1 + 3 + 6
    assert sum("stroke-dasharray" in box.attrib for box in boxes) == 6
    assert "10 of 34 nodes are shown; a dashed box has more below it." in [
        text.text for text in picture.iter(f"{SVG}text")
    ]
    assert (
        len(
            [
                rect
                for rect in ElementTree.fromstring(tree.to_svg(max_nodes=1)).iter(f"{SVG}rect")
                if rect.get("rx")
            ]
        )
        == 1
    )


NOISE = "noise (standard deviation): 4.3 on a count of a leaf, 161 on one of the root"


def test_views_state_the_noise_once() -> None:
    noisy = replace(TREE, deviation=(4.32, 161.2))
    assert noisy.to_text().splitlines() == [*TREE.to_text().splitlines(), NOISE]
    for tree in (noisy, make_full_tree((3, 2, 4))):
        picture = ElementTree.fromstring(
            replace(tree, deviation=(4.32, 161.2)).to_svg(max_nodes=10)
        )
        assert NOISE in [text.text for text in picture.iter(f"{SVG}text")]
        last = max(
            float(box.attrib["y"]) + float(box.attrib["height"])
            for box in picture.iter(f"{SVG}rect")
            if box.get("rx")
        )
        notes = [
            float(text.attrib["y"])
            for text in picture.iter(f"{SVG}text")
            if text.get("fill") == "#555555"
        ]
        assert (
            min(notes) - 13 > last
            and max(notes) < float(picture.attrib["height"])
            and len(set(notes)) == len(notes)
        )
    assert replace(TREE, deviation=(0.0, 0.0)).to_text() == TREE.to_text()


@pytest.mark.parametrize(
    "name", ["W" * 60, "i" * 60, "\u7b2c" * 60, "\u00fc" * 60, "a\u0301" * 60, "<&" * 30]
)
def test_svg_text_fits_its_box(name: str) -> None:
    schema = Schema(
        [Categorical(name, [name, "y"], missing=False)], label=Categorical("ill", [name, "x"])
    )
    counts = np.full((3, 2), 123456.0)
    tree = DecisionTree(
        schema, np.array([0, -1, -1]), np.array([1, -1, -1]), counts, np.full((3, 2), 0.5)
    )
    picture = ElementTree.fromstring(tree.to_svg())
    texts = [
        (text.text or "", float(text.attrib["font-size"]), text.get("text-anchor"))
        for text in picture.iter(f"{SVG}text")
    ]
    assert sum(text.endswith("…") for text, _, _ in texts) >= 5
    for text, size, anchor in texts:
        assert _measure_width(text, size if size == 13 else 0.92 * size) <= (
            340 - 210 - 8 if anchor else 210 - 18
        )
    # The cut is as late as possible: one more letter would not fit.
    head = next(text for text, size, _ in texts if size == 13)
    assert _measure_width(f"{head[:-1]}{name[len(head) - 1]}…", 13) > 210 - 18 - 4 - 13 * 1.25


def test_classes_beyond_the_colours_share_a_neutral_one() -> None:
    schema = Schema(
        [Categorical("x", [str(i) for i in range(9)], missing=False)],
        label=Categorical("y", [f"c{i}" for i in range(9)]),
    )
    counts = np.vstack([np.ones(9), np.eye(9)])
    tree = DecisionTree(
        schema,
        np.array([0] + [-1] * 9),
        np.array([1] + [-1] * 9),
        counts,
        counts / counts.sum(axis=1, keepdims=True),
    )
    fills = [
        rect.attrib["fill"]
        for rect in ElementTree.fromstring(tree.to_svg()).iter(f"{SVG}rect")
        if rect.get("width") == "8"
    ]
    assert len(set(fills[:7])) == 7 and fills[7] == fills[8] and fills[7] not in fills[:7]
    assert "c3 1, c4 1" not in tree.to_text() and "c0 1, c1 1, c2 1, …" in tree.to_text()
    assert "c0 1, c1 1, c2 1, c3 1, c4 1, c5 1, c6 1, c7 1, c8 1" in tree.to_text(n_classes=None)


@pytest.mark.parametrize(("length", "words"), [(3, "{0} 5, {1} 7"), (18, "{1} 7, …"), (40, "…")])
def test_svg_omits_counts_that_do_not_fit(length: int, words: str) -> None:
    names = ("n" * length, "y" * length)
    schema = Schema([SCHEMA.features[0]], label=Categorical("ill", names))
    leaf = DecisionTree(
        schema, np.array([-1]), np.array([-1]), np.array([[5.0, 7]]), np.array([[0.4, 0.6]])
    )
    told = [text.text for text in ElementTree.fromstring(leaf.to_svg()).iter(f"{SVG}text")][1]
    assert told == words.format(*names)


def test_to_text_without_width_does_not_cut() -> None:
    assert "z" * 50 + " → yes  [<no> 3, yes 4]" in TREE.to_text(width=None)
    assert max(map(len, TREE.to_text(width=1).splitlines())) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_depth": -1},
        {"max_depth": 1.5},
        {"max_depth": True},
        {"width": 0},
        {"width": "80"},
        {"n_classes": 0},
        {"max_nodes": 0},
    ],
)
def test_invalid_arguments_raise_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must be a whole number of at least") as error:
        (TREE.to_svg if "max_nodes" in wrong else TREE.to_text)(**wrong)
    assert error.value.code == "USAGE-001"
    with pytest.raises(UsageError):
        TREE.to_svg(max_nodes=None)  # type: ignore[arg-type]


def test_deep_tree_is_rendered() -> None:
    n = 3000
    schema = Schema(
        [Numeric(f"a{j}", 0, 1, bins=[], missing=False) for j in range(n)],
        label=Categorical("ill", ["no", "yes"]),
    )
    counts = np.ones((n + 1, 2))
    tree = DecisionTree(
        schema, np.array([*range(n), -1]), np.array([*range(1, n + 1), -1]), counts, counts / 2
    )
    assert len(tree.to_text(width=40).splitlines()) == n + 1
    assert tree.to_svg(max_nodes=n + 1).count("rx=") == n + 1
