"""Draw, Instance and Update on the wire."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import decode, dumps, encode
from shoal.protocols.ddml.messages import MESSAGES, DDMLDraw, DDMLInstance, DDMLUpdate
from tests.support.ddml import STUDY, an_id

WEIGHTS = Array.from_values(np.array([5, -7], np.int32))
DRAW = DDMLDraw(study=STUDY, id=an_id(0))
INSTANCE = DDMLInstance(study=STUDY, draw=an_id(0), epoch=3, weights=WEIGHTS)
UPDATE = DDMLUpdate(study=STUDY, id=an_id(1), epoch=3, weights=WEIGHTS)


@pytest.mark.parametrize("message", [DRAW, INSTANCE, UPDATE])
def test_messages_survive_round_trip(message: Message) -> None:
    assert decode(encode(message), MESSAGES, STUDY) == message


def test_update_spends_is_anonymous_and_has_submission_of_id() -> None:
    assert DDMLUpdate.spends and DDMLUpdate.is_anonymous
    assert UPDATE.submission == UPDATE.id
    assert UPDATE.replace(epoch=4).submission == UPDATE.submission
    assert UPDATE.replace(id=an_id(2)).submission != UPDATE.submission


def test_draw_has_sender_but_no_submission() -> None:
    for message in (DRAW, INSTANCE):
        assert not message.spends and not message.is_anonymous
        assert message.submission is None


def test_update_of_million_weights_fits() -> None:
    largest = Array.from_values(np.full(1 << 20, -(1 << 31), np.int32))
    epoch = (1 << 63) - 1
    for message in (
        INSTANCE.replace(weights=largest, epoch=epoch),
        UPDATE.replace(weights=largest, epoch=epoch),
    ):
        assert decode(encode(message), MESSAGES, STUDY) == message
    with pytest.raises(LocalProtocolError) as caught:
        encode(UPDATE.replace(weights=Array.from_values(np.zeros((1 << 20) + 300, np.int32))))
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
def test_messages_reject_invalid_fields(message: Message, change: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError):
        message.replace(**change)
    body = {**message.model_dump(exclude={"study"}), **change}
    with pytest.raises(RemoteProtocolError) as caught:
        decode(
            dumps({"type": message.type_name, "version": 1, "study": STUDY, "body": body}),
            MESSAGES,
            STUDY,
        )
    assert caught.value.code == "MSG-005"
