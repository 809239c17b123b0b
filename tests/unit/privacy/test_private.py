"""A wrapped true value does not show, compare, copy or travel."""

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
    "shown", [repr, str, lambda x: f"{x}", lambda x: f"{x:>40}", lambda x: f"{x!r}", "{:d}".format, lambda x: repr([x])]
)
def test_only_the_type_is_shown(shown) -> None:
    text = shown(Private(SECRET))
    assert "Private[int]" in text
    assert str(SECRET) not in text


def test_a_dataclass_that_holds_one_does_not_show_it() -> None:
    @dataclass(frozen=True)
    class State:
        row: Private[dict[str, int]]

    assert repr(State(Private({"age": SECRET}))).endswith("State(row=Private[dict])")


def test_equality_and_hash_are_those_of_the_wrapper() -> None:
    one, other = Private(SECRET), Private(SECRET)
    assert one == one
    assert one != other
    assert one != SECRET
    assert len({one, other}) == 2


def test_it_is_revealed_on_request_alone() -> None:
    value = np.arange(3)
    private = Private(value)
    assert private.reveal() is value
    for attempt in (iter, len, int, lambda x: x[0], lambda x: x + 1, lambda x: x < 3, vars):
        with pytest.raises(TypeError):
            attempt(private)


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy, bool])
def test_it_is_not_pickled_copied_or_asked(attempt) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        attempt(Private(SECRET))
    assert caught.value.code == "PRIVATE-001"
    assert str(SECRET) not in str(caught.value)


def test_it_is_not_written_as_json() -> None:
    with pytest.raises(TypeError) as caught:
        json.dumps({"age": Private(SECRET)})
    assert str(SECRET) not in str(caught.value)
