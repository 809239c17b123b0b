"""Trees as text and as pictures."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import numpy as np

from sdq_trees import schema_of
from shoal.domain import Categorical, Numeric, Schema
from shoal.protocols.sdq.growth import grow
from shoal.protocols.sdq.model import Tree

SVG = "{http://www.w3.org/2000/svg}"
SCHEMA = Schema(
    [Numeric("age", 0, 90, bins=[30]), Categorical("a <b> & 'c'", ['"x"', "y\x1b[2J\nw", "z" * 50], missing=False)],
    label=Categorical("ill", ["<no>", "yes"]),
)
TREE = Tree(
    SCHEMA,
    np.array([0, -1, 1, -1, -1, -1, -1]),
    np.array([1, -1, 4, -1, -1, -1, -1]),
    np.array([[60.2, 40], [30, -2.6], [20, 30], [10, 12], [1, 2], [math.nan] * 2, [3, 4]]),
    np.array([[0.6, 0.4], [1, 0], [0.4, 0.6], [0.5, 0.5], [0.3, 0.7], [0.2, 0.8], [0.4, 0.6]]),
)


def full_tree(arities: tuple[int, ...]) -> Tree:
    """Every attribute in order on every path."""
    choices: tuple[int, ...] = ()
    n_nodes = 1
    for depth, arity in enumerate((*arities, 0)):
        choices += (depth if arity else -1,) * n_nodes
        n_nodes *= arity
    growth = grow(choices, arities, 2, len(arities))
    counts = np.ones((len(growth.splits), 2))
    return Tree(schema_of(arities, 2), growth.splits, growth.firsts, counts, counts / 2)


def test_text() -> None:
    assert TREE.to_text(width=60).splitlines() == [
        "age?  [<no> 60, yes 40]",
        "├─ <= 30 → <no>  [<no> 30, yes -3]",
        "├─ > 30: a <b> & 'c'?  [<no> 20, yes 30]",
        '│  ├─ "x" → yes  [<no> 1, yes 2]',
        "│  ├─ 'y\\x1b[2J\\nw' → yes",
        "│  └─ " + "z" * 50 + " → …",
        "└─ missing → <no>  [<no> 10, yes 12]",
    ]


def test_text_is_cut_at_a_depth() -> None:
    assert TREE.to_text(max_depth=1).splitlines()[2] == "├─ > 30 → yes  [<no> 20, yes 30]  … 3 nodes below"
    assert TREE.to_text(max_depth=0) == "→ <no>  [<no> 60, yes 40]  … 6 nodes below"
    assert TREE.to_text(max_depth=2) == TREE.to_text()


def test_a_leaf_is_one_line() -> None:
    leaf = Tree(SCHEMA, np.array([-1]), np.array([-1]), np.array([[1.0, 2]]), np.array([[0.4, 0.6]]))
    assert leaf.to_text() == "→ yes  [<no> 1, yes 2]"
    picture = ElementTree.fromstring(leaf.to_svg())
    assert [text.text for text in picture.iter(f"{SVG}text")] == ["yes", "<no> 1, yes 2"]


def test_a_picture_says_all_that_the_text_says() -> None:
    picture = ElementTree.fromstring(TREE.to_svg())
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    for said in ("age?", "a <b> & 'c'?", "<no>", "yes", "<= 30", "> 30", "missing", '"x"', "'y\\x1b[2J\\nw'", "<no> 30, yes -3"):
        assert said in texts
    assert any(text and text.startswith("zzz") and text.endswith("…") for text in texts)
    title = picture.find(f"{SVG}title")
    assert title is not None and title.text == "A decision tree for ill"
    assert len(list(picture.iter(f"{SVG}path"))) == 6
    assert not any("dash" in name for rect in picture.iter(f"{SVG}rect") for name in rect.attrib)


def test_a_picture_needs_nothing_else() -> None:
    picture = TREE.to_svg()
    kinds = {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(picture).iter()}
    assert kinds == {"svg", "title", "rect", "path", "text"}
    assert "href" not in picture and "url(" not in picture
    assert picture.count("http") == 1  # the name of the format


def test_no_two_boxes_meet_and_all_are_inside() -> None:
    picture = ElementTree.fromstring(full_tree((3, 2, 4)).to_svg())
    boxes = [rect for rect in picture.iter(f"{SVG}rect") if rect.get("rx")]
    assert len(boxes) == 1 + 3 + 6 + 24
    places = [(float(box.attrib["x"]), float(box.attrib["y"])) for box in boxes]
    width, height = float(boxes[0].attrib["width"]), float(boxes[0].attrib["height"])
    for i, (x, y) in enumerate(places):
        assert 0 <= x <= float(picture.attrib["width"]) - width
        assert 0 <= y <= float(picture.attrib["height"]) - height
        assert all(abs(x - other[0]) >= width or abs(y - other[1]) >= height for other in places[:i])


def test_a_large_tree_is_cut_next_to_its_root_and_says_so() -> None:
    tree = full_tree((3, 2, 4))
    picture = ElementTree.fromstring(tree.to_svg(max_nodes=15))
    boxes = [rect for rect in picture.iter(f"{SVG}rect") if rect.get("rx")]
    assert len(boxes) == 1 + 3 + 6 + 4
    assert sum("stroke-dasharray" in box.attrib for box in boxes) == 5
    assert "14 of 34 nodes are shown; a dashed box has more below it." in [text.text for text in picture.iter(f"{SVG}text")]
    assert len([rect for rect in ElementTree.fromstring(tree.to_svg(max_nodes=1)).iter(f"{SVG}rect") if rect.get("rx")]) == 1


def test_a_deep_tree_is_no_trouble() -> None:
    n = 3000
    schema = Schema([Numeric(f"a{j}", 0, 1, bins=[], missing=False) for j in range(n)], label=Categorical("ill", ["no", "yes"]))
    counts = np.ones((n + 1, 2))
    tree = Tree(schema, np.array([*range(n), -1]), np.array([*range(1, n + 1), -1]), counts, counts / 2)
    assert len(tree.to_text(width=40).splitlines()) == n + 1
    assert tree.to_svg(max_nodes=n + 1).count("rx=") == n + 1
