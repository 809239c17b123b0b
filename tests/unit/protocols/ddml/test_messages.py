"""Draw, Instance and Update on the wire."""

from __future__ import annotations

import numpy as np
import pytest

from ddml_cases import STUDY, an_id
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import decode, dumps, encode
from shoal.protocols.ddml.messages import MESSAGES, Draw, Instance, Update

WEIGHTS = Array.of(np.array([5, -7], np.int32))
DRAW = Draw(study=STUDY, id=an_id(0))
INSTANCE = Instance(study=STUDY, draw=an_id(0), epoch=3, weights=WEIGHTS)
UPDATE = Update(study=STUDY, id=an_id(1), epoch=3, weights=WEIGHTS)


@pytest.mark.parametrize("message", [DRAW, INSTANCE, UPDATE])
def test_messages_come_back_as_they_were(message: Message) -> None:
    assert decode(encode(message), MESSAGES, STUDY) == message


def test_an_update_is_priced_anonymous_and_counts_once_for_its_id() -> None:
    assert Update.spends and Update.is_anonymous
    assert UPDATE.submission == UPDATE.id
    assert UPDATE.replace(epoch=4).submission == UPDATE.submission
    assert UPDATE.replace(id=an_id(2)).submission != UPDATE.submission


def test_a_draw_is_answered_so_it_has_a_sender_but_leaves_no_trace_in_an_index() -> None:
    for message in (DRAW, INSTANCE):
        assert not message.spends and not message.is_anonymous
        assert message.submission is None


def test_a_million_weights_fit() -> None:
    largest = Array.of(np.full(1 << 20, -(1 << 31), np.int32))
    epoch = (1 << 63) - 1
    for message in (INSTANCE.replace(weights=largest, epoch=epoch), UPDATE.replace(weights=largest, epoch=epoch)):
        assert decode(encode(message), MESSAGES, STUDY) == message
    with pytest.raises(LocalProtocolError) as caught:
        encode(UPDATE.replace(weights=Array.of(np.zeros((1 << 20) + 300, np.int32))))
    assert caught.value.code == "MSG-001"


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (DRAW, {"id": bytes(15)}),
        (DRAW, {"id": "x" * 16}),
        (INSTANCE, {"draw": bytes(17)}),
        (INSTANCE, {"epoch": -1}),
        (INSTANCE, {"weights": b"1234"}),
        (UPDATE, {"id": b""}),
        (UPDATE, {"epoch": True}),
        (UPDATE, {"epoch": 1.0}),
        (UPDATE, {"weights": None}),
    ],
)
def test_what_does_not_fit_cannot_be_made_or_read(message: Message, change: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError):
        message.replace(**change)
    body = {**message.model_dump(exclude={"study"}), **change}
    with pytest.raises(RemoteProtocolError) as caught:
        decode(dumps({"type": message.type_name, "version": 1, "study": STUDY, "body": body}), MESSAGES, STUDY)
    assert caught.value.code == "MSG-005"
