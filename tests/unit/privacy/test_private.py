"""`Private`: a value that is not shown, compared, copied or sent."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import dataclass

import numpy as np
import pytest

from shoal.errors import LocalProtocolError
from shoal.privacy.private import Private

SECRET = 7331


@pytest.mark.parametrize(
    "shown",
    [
        repr,
        str,
        lambda x: f"{x}",
        lambda x: f"{x:>40}",
        lambda x: f"{x!r}",
        "{:d}".format,
        lambda x: repr([x]),
    ],
)
def test_repr_and_format_show_only_type(shown) -> None:
    text = shown(Private(SECRET))
    assert "Private[int]" in text
    assert str(SECRET) not in text


def test_repr_of_dataclass_does_not_show_value() -> None:
    @dataclass(frozen=True)
    class State:
        row: Private[dict[str, int]]

    assert repr(State(Private({"age": SECRET}))).endswith("State(row=Private[dict])")


def test_equality_and_hash_do_not_depend_on_value() -> None:
    one, other = Private(SECRET), Private(SECRET)
    assert one == one
    assert one != other
    assert one != SECRET
    assert len({one, other}) == 2


def test_reveal_returns_value() -> None:
    value = np.arange(3)
    private = Private(value)
    assert private.reveal() is value
    for attempt in (iter, len, int, lambda x: x[0], lambda x: x + 1, lambda x: x < 3, vars):
        with pytest.raises(TypeError):
            attempt(private)


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy, bool])
def test_pickle_copy_and_bool_raise(attempt) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        attempt(Private(SECRET))
    assert caught.value.code == "PRIVATE-001"
    assert str(SECRET) not in str(caught.value)


def test_json_encoding_raises() -> None:
    with pytest.raises(TypeError) as caught:
        json.dumps({"age": Private(SECRET)})
    assert str(SECRET) not in str(caught.value)
