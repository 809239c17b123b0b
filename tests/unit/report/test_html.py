"""Markup is well-formed for any text."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.report.html import Markup, escape, join, tag, truncate
from tests.unit.report.cases import HOSTILE


@pytest.mark.parametrize("words", HOSTILE)
def test_tag_escapes_hostile_text_in_content_and_attributes(words: str) -> None:
    element = ElementTree.fromstring(tag("p", words, title=words, class_="note"))
    assert len(element) == 0 and set(element.attrib) == {"title", "class"}
    for char in words:
        if char.isprintable():
            assert char in (element.text or "") and char in element.attrib["title"]


@given(st.text(), st.text())
def test_tag_gives_well_formed_markup_for_any_text(content: str, attribute: str) -> None:
    element = ElementTree.fromstring(tag("p", content, title=attribute))
    assert len(element) == 0


def test_escape_replaces_bidirectional_and_hidden_characters() -> None:
    assert escape("a\u202eb\u200bc\x07d") == "a\ufffdb\ufffdc\ufffdd"
    assert escape("tab\tand\nline") == "tab\tand\nline"


def test_tag_keeps_markup_and_escapes_text() -> None:
    assert (
        tag("p", tag("b", "1 < 2"), " & ", None, ["x", Markup("<i></i>")])
        == "<p><b>1 &lt; 2</b> &amp; x<i></i></p>"
    )
    assert Markup("<b></b>") + "<c>" == "<b></b>&lt;c&gt;"
    assert isinstance(join(["a", Markup("b")]), Markup)


def test_tag_omits_empty_attributes() -> None:
    assert tag("br", hidden=False, id=None) == "<br>"
    assert tag("details", "x", open=True) == '<details open="">x</details>'
    assert (
        tag("rect", stroke_width=0.12345, x=7.0, viewBox="0 0 1 1")
        == '<rect stroke-width="0.12" x="7" viewBox="0 0 1 1"></rect>'
    )


def test_truncate_cuts_long_text() -> None:
    assert truncate("abcdef", 6) == "abcdef" and truncate("abcdefg", 6) == "abcde…"
