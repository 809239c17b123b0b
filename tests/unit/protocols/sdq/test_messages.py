"""SDQ's messages: what spends, what counts once, and that the largest of each has room."""

from __future__ import annotations

import numpy as np
import pytest

from sdq_cases import QUERIES
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import decode, encode
from shoal.protocols.joint.messages import JointFrame
from shoal.protocols.sdq.growth import MAX_COUNTS, MAX_NODES
from shoal.protocols.sdq.messages import (
    MAX_REASON,
    MESSAGES,
    Ask,
    BrokenOff,
    Contributions,
    Counts,
    Ended,
    JointKey,
    JointKeys,
    PartyKey,
    Scores,
    SealedBox,
    Settled,
    Unusable,
)
from shoal.protocols.sdq.params import MAX_COMMITTEE
from shoal.protocols.sdq.script import Course
from shoal.protocols.sums.messages import SUM_MESSAGES

STUDY = bytes(range(32))
KEY, SIGNATURE = bytes(32), bytes(64)
BOX = SealedBox(member=3, box=b"sealed", signature=SIGNATURE)

SAMPLES: list[Message] = [
    Ask(study=STUDY, round=0, course=Course()),
    Ask(study=STUDY, round=3, course=Course(step=2, choices=(1, -1), leaves=(True,)), query=QUERIES[0], number=1),
    Ask(study=STUDY, round=4, course=Course(), query=QUERIES[1]),
    Counts(study=STUDY, round=1, counts=Array.of(np.array([-3, 5]))),
    JointKey(study=STUDY, round=1, box=KEY, signature=SIGNATURE),
    JointKeys(study=STUDY, round=1, keys=(PartyKey(party=2, box=KEY, signature=SIGNATURE),)),
    Scores(study=STUDY, round=1, boxes=(BOX,)),
    Contributions(study=STUDY, round=1, boxes=(BOX, BOX)),
    Settled(study=STUDY, round=1, position=4),
    Unusable(study=STUDY, round=1, dealer=4),
    BrokenOff(study=STUDY, round=1),
    BrokenOff(study=STUDY, round=1, party=4),
    Ended(study=STUDY),
    Ended(study=STUDY, reason="Nobody came."),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: message.type_name)
def test_messages_are_read_as_they_were_written(message: Message) -> None:
    assert decode(encode(message), MESSAGES, STUDY) == message


def test_the_registry_has_all_that_travels() -> None:
    kinds = set(MESSAGES.values())
    assert kinds == {type(message) for message in SAMPLES} | {JointFrame, *SUM_MESSAGES}


def test_what_holds_counts_or_scores_spends_and_nothing_else() -> None:
    assert {kind.type_name for kind in MESSAGES.values() if kind.spends} == {"sdq.counts", "sdq.scores", "sum.masked"}


def test_what_a_database_sends_counts_once_in_a_round() -> None:
    for message in SAMPLES:
        if isinstance(message, Counts | JointKey | Scores | Settled | Unusable | BrokenOff):
            assert message.submission == message.round.to_bytes(8, "big")
            assert message.replace(round=9).submission != message.submission
        else:
            assert message.submission is None
        assert not message.is_anonymous


@pytest.mark.untraced
def test_the_largest_message_of_each_kind_has_room() -> None:
    half = MAX_NODES // 2
    deep = Course(step=9, choices=(1999,) * half + (-1,) * half, leaves=(True,) * half)
    largest = SealedBox(member=1000, box=bytes(2000 * 16 + 48), signature=SIGNATURE)
    for message in (
        Ask(study=STUDY, round=1 << 40, course=deep),
        Counts(study=STUDY, round=1 << 40, counts=Array.of(np.zeros(MAX_COUNTS, np.int64))),
        JointKeys(study=STUDY, round=1 << 40, keys=tuple(PartyKey(party=i, box=KEY, signature=SIGNATURE) for i in range(1000))),
        Scores(study=STUDY, round=1 << 40, boxes=(largest,) * MAX_COMMITTEE),
        Contributions(study=STUDY, round=1 << 40, boxes=(largest.replace(box=bytes(100 * 16 + 48)),) * 1000),
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
        (SAMPLES[6], {"boxes": (BOX.model_construct(member=0, box=bytes((1 << 15) + 1), signature=SIGNATURE),)}),
        (SAMPLES[8], {"position": -1}),
        (SAMPLES[9], {"dealer": -1}),
        (SAMPLES[11], {"party": -1}),
        (SAMPLES[13], {"reason": "x" * (MAX_REASON + 1)}),
    ],
)
def test_other_fields_are_refused(message: Message, changes: dict[str, object]) -> None:
    fields = {name: getattr(message, name) for name in type(message).model_fields} | changes
    with pytest.raises(RemoteProtocolError) as caught:
        decode(encode(type(message).model_construct(**fields)), MESSAGES, STUDY)
    assert caught.value.code == "MSG-005"
