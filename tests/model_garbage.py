"""A check for every protocol's model: whatever is in its file, it is refused with a sentence or is another model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import strategies as st

from shoal.errors import ShoalError

ModelOf = TypeVar("ModelOf")

GARBAGE = (
    st.none() | st.booleans() | st.integers(-3, 10**30) | st.floats() | st.text(max_size=3) | st.just([]) | st.just({}) | st.just([[]])
)


def at(document: dict[str, Any], path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """The document with one part replaced."""
    whole: Any = json.loads(json.dumps(document))
    part = whole
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return whole  # type: ignore[no-any-return]


def paths(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    inside = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    return [path, *(place for key, part in inside for place in paths(part, (*path, key)))]


def read_with_garbage(plain: dict[str, Any], from_plain: Callable[[dict[str, Any]], ModelOf], data: st.DataObject) -> ModelOf | None:
    """What is read of a model's file one place of which holds garbage; None where it is refused."""
    place = data.draw(st.sampled_from(paths(plain)[1:]))
    document = at(plain, place, data.draw(GARBAGE))
    try:
        return from_plain(document)
    except ShoalError:
        return None
