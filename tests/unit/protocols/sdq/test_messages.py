"""SDQ's messages: encoding, submissions, prices, and size limits."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import decode, encode
from shoal.protocols.mpc.party import JointFrame
from shoal.protocols.sdq.messages import (
    MAX_REASON,
    MESSAGES,
    ChoiceResult,
    ComputationFailure,
    Contributions,
    Counts,
    JointKey,
    JointKeys,
    PartyKey,
    SDQAsk,
    SDQScores,
    SDQStudyEnd,
    SealedBox,
    UnusableShares,
)
from shoal.protocols.sdq.paper import MAX_COUNTS, MAX_NODES
from shoal.protocols.sdq.params import MAX_COMMITTEE
from shoal.protocols.sdq.script import SDQScriptState
from shoal.protocols.secagg.messages import SUM_MESSAGES
from tests.support.sdq import QUERIES

STUDY = bytes(range(32))
KEY, SIGNATURE = bytes(32), bytes(64)
BOX = SealedBox(member=3, box=b"sealed", signature=SIGNATURE)

SAMPLES: list[Message] = [
    SDQAsk(study=STUDY, round=0, course=SDQScriptState()),
    SDQAsk(
        study=STUDY,
        round=3,
        course=SDQScriptState(step=2, choices=(1, -1), leaves=(True,)),
        query=QUERIES[0],
        number=1,
    ),
    SDQAsk(study=STUDY, round=4, course=SDQScriptState(), query=QUERIES[1]),
    Counts(study=STUDY, round=1, counts=Array.from_values(np.array([-3, 5]))),
    JointKey(study=STUDY, round=1, box=KEY, signature=SIGNATURE),
    JointKeys(study=STUDY, round=1, keys=(PartyKey(party=2, box=KEY, signature=SIGNATURE),)),
    SDQScores(study=STUDY, round=1, boxes=(BOX,)),
    Contributions(study=STUDY, round=1, boxes=(BOX, BOX)),
    ChoiceResult(study=STUDY, round=1, position=4),
    UnusableShares(study=STUDY, round=1, dealer=4),
    ComputationFailure(study=STUDY, round=1),
    ComputationFailure(study=STUDY, round=1, party=4),
    SDQStudyEnd(study=STUDY),
    SDQStudyEnd(study=STUDY, reason="Nobody came."),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: message.type_name)
def test_decode_inverts_encode(message: Message) -> None:
    assert decode(encode(message), MESSAGES, STUDY) == message


def test_registry_contains_every_message() -> None:
    kinds = set(MESSAGES.values())
    assert kinds == {type(message) for message in SAMPLES} | {JointFrame, *SUM_MESSAGES}


def test_only_counts_scores_and_masked_vectors_spend() -> None:
    assert {kind.type_name for kind in MESSAGES.values() if kind.spends} == {
        "sdq.counts",
        "sdq.scores",
        "sum.masked",
    }


def test_database_messages_have_one_submission_per_round() -> None:
    for message in SAMPLES:
        if isinstance(
            message,
            Counts | JointKey | SDQScores | ChoiceResult | UnusableShares | ComputationFailure,
        ):
            assert message.submission == message.round.to_bytes(8, "big")
            assert message.replace(round=9).submission != message.submission
        else:
            assert message.submission is None
        assert not message.is_anonymous


@pytest.mark.untraced
def test_largest_message_of_each_kind_fits_its_limit() -> None:
    half = MAX_NODES // 2
    deep = SDQScriptState(step=9, choices=(1999,) * half + (-1,) * half, leaves=(True,) * half)
    largest = SealedBox(member=1000, box=bytes(2000 * 16 + 48), signature=SIGNATURE)
    for message in (
        SDQAsk(study=STUDY, round=1 << 40, course=deep),
        Counts(
            study=STUDY, round=1 << 40, counts=Array.from_values(np.zeros(MAX_COUNTS, np.int64))
        ),
        JointKeys(
            study=STUDY,
            round=1 << 40,
            keys=tuple(PartyKey(party=i, box=KEY, signature=SIGNATURE) for i in range(1000)),
        ),
        SDQScores(study=STUDY, round=1 << 40, boxes=(largest,) * MAX_COMMITTEE),
        Contributions(
            study=STUDY, round=1 << 40, boxes=(largest.replace(box=bytes(100 * 16 + 48)),) * 1000
        ),
    ):
        assert decode(encode(message), MESSAGES, STUDY) == message


@pytest.mark.parametrize(
    "message, changes",
    [
        (SAMPLES[0], {"round": -1}),
        (SAMPLES[1], {"number": -1}),
        (SAMPLES[4], {"box": bytes(31)}),
        (SAMPLES[4], {"signature": bytes(65)}),
        (SAMPLES[6], {"boxes": (BOX.model_construct(member=-1, box=b"", signature=SIGNATURE),)}),
        (
            SAMPLES[6],
            {
                "boxes": (
                    BOX.model_construct(member=0, box=bytes((1 << 15) + 1), signature=SIGNATURE),
                )
            },
        ),
        (SAMPLES[8], {"position": -1}),
        (SAMPLES[9], {"dealer": -1}),
        (SAMPLES[11], {"party": -1}),
        (SAMPLES[13], {"reason": "x" * (MAX_REASON + 1)}),
    ],
)
def test_decode_rejects_invalid_fields(message: Message, changes: dict[str, object]) -> None:
    fields = {name: getattr(message, name) for name in type(message).model_fields} | changes
    with pytest.raises(RemoteProtocolError) as caught:
        decode(encode(type(message).model_construct(**fields)), MESSAGES, STUDY)
    assert caught.value.code == "MSG-005"
