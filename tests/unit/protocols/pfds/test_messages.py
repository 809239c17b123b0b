"""PFDS's messages: what spends, what counts once, and that the largest of each has room."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import decode, dumps, encode, loads
from shoal.protocols.pfds.messages import (
    MESSAGES,
    Ask,
    Data,
    Ended,
    Label,
    LeafLabels,
    Leaves,
    Left,
    LevelCounts,
    PassedOn,
    SharedModel,
    Splits,
    Tables,
    floats_in,
    floats_of,
)
from shoal.protocols.pfds.sums import Course
from shoal.protocols.sums.messages import SUM_MESSAGES
from shoal.study.conditions_pfds import MAX_COUNTS

STUDY = bytes(range(32))


def ints(n: int = 2) -> Array:
    return Array.of(np.arange(n, dtype=np.int64))


def floats(n: int = 2) -> Array:
    return floats_in(np.linspace(-1, 1, n))


def an_ask(n: int = 2) -> Ask:
    return Ask(study=STUDY, round=1, course=Course(step=1, weights=ints(n), intercept=-5, direction=ints(n), reaches=(1, 2)))


SPLITS = Splits(study=STUDY, level=3, attributes=Array.of(np.array([0, 1], np.int16)), values=floats())
LABELS = LeafLabels(study=STUDY, labels=Array.of(np.array([0, 1], np.uint8)))
DATA = Data(study=STUDY, n_rows=2, columns=(floats(), Array.of(np.array([0, -1], np.int16))), labels=floats())
SAMPLES: list[tuple[Message, bool, bytes | None]] = [
    (an_ask(), False, None),
    (Tables(study=STUDY, counts=ints()), True, b"tables"),
    (SharedModel(study=STUDY, weights=floats(), intercepts=floats(1), variances=floats(), shares=floats()), False, None),
    (SPLITS, True, b"\0\3"),
    (Leaves(study=STUDY, counts=Array.of(np.array([-1, 7], np.int32))), True, b"leaves"),
    (LevelCounts(study=STUDY, level=258, counts=ints()), True, b"\1\2"),
    (DATA, False, b"data"),
    (PassedOn(study=STUDY, holder="north", shared=SPLITS), False, None),
    (PassedOn(study=STUDY, holder="north", shared=LABELS), False, None),
    (PassedOn(study=STUDY, holder="north", shared=DATA), False, None),
    (Label(study=STUDY, holders=("north",)), False, None),
    (Ended(study=STUDY, holders=("north",), left_out=(Left(holder="south", reason="it was late"),)), False, None),
    (Ended(study=STUDY, reason="Nobody came."), False, None),
]


@pytest.mark.parametrize("message, spends, submission", SAMPLES, ids=[type(sample[0]).__name__ for sample in SAMPLES])
def test_messages_are_read_as_they_were_written(message: Message, spends: bool, submission: bytes | None) -> None:
    assert decode(encode(message), MESSAGES, STUDY) == message
    assert message.spends is spends and message.submission == submission and not message.is_anonymous


def test_all_messages_are_there_with_those_of_secure_sums_and_what_is_only_passed_on_is_not() -> None:
    assert set(MESSAGES.values()) == {*(type(sample[0]) for sample in SAMPLES), *SUM_MESSAGES}
    with pytest.raises(RemoteProtocolError) as caught:
        decode(encode(LABELS), MESSAGES, STUDY)
    assert caught.value.code == "MSG-004"


def test_what_is_passed_on_is_of_the_same_study() -> None:
    envelope = loads(encode(PassedOn(study=STUDY, holder="north", shared=SPLITS)))
    assert isinstance(envelope, dict)
    body = {**envelope["body"], "shared": {**envelope["body"]["shared"], "study": bytes(32)}}
    with pytest.raises(RemoteProtocolError) as caught:
        decode(dumps({**envelope, "body": body}), MESSAGES, STUDY)
    assert caught.value.code == "MSG-005"


@pytest.mark.parametrize("values", [[], [0.0, -0.0, 5e-324, 1.7976931348623157e308], [0.1, -1 / 3]])
def test_floats_travel_to_the_last_bit(values: list[float]) -> None:
    read = floats_of(floats_in(np.array(values)), len(values))
    assert read.tobytes() == np.array(values, np.float64).tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(RemoteProtocolError, match="not finite"):
        floats_of(floats_in(np.array([0.0, value])), 2)


def test_as_many_floats_as_are_due() -> None:
    for array in (floats(3), Array.of(np.zeros(2, np.uint64))):
        with pytest.raises(RemoteProtocolError) as caught:
            floats_of(array, 2)
        assert caught.value.code == "MSG-005"


def test_the_largest_that_a_study_allows_has_room() -> None:
    """Tables of so many counts in all; two sides at least, so half as many cells; and as many holders as a roster has."""
    most, name = MAX_COUNTS, "\U0001f41f" * 200
    sizes = {"weights": floats(most), "intercepts": floats(most // 2), "variances": floats(most), "shares": floats(most // 2)}
    left = tuple(Left(holder=name, reason="its rows are not in: " + "residuals/0, " * 6) for _ in range(10_000))
    for message in (
        an_ask(most // 2),
        Tables(study=STUDY, counts=ints(most)),
        SharedModel(study=STUDY, **sizes),
        Ended(study=STUDY, left_out=left),
        Ended(study=STUDY, holders=(name,) * 10_000),
        Label(study=STUDY, holders=(name,) * 10_000),
    ):
        assert len(encode(message)) <= message.max_bytes
