"""Ask and Answer on the wire."""

from __future__ import annotations

import pytest

from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.codec import decode, dumps, encode
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAnswer, AnonMLAsk, AnonMLPublication
from tests.support.anonml import STUDY

ASK = AnonMLAsk(
    study=STUDY,
    phase=3,
    publication=AnonMLPublication(points=(0.5, 2.0), cuts=((1.0,), (2.0, 3.0)), levels=((0, 2),)),
)
ANSWER = AnonMLAnswer(study=STUDY, ticket=b"t" * 32, phase=3, question=1, report=b"\x01")


@pytest.mark.parametrize(
    "message", [ASK, ANSWER, AnonMLAsk(study=STUDY, phase=0, publication=AnonMLPublication())]
)
def test_messages_survive_round_trip(message: AnonMLAsk | AnonMLAnswer) -> None:
    assert decode(encode(message), MESSAGES, STUDY) == message


def test_answer_spends_is_anonymous_and_has_submission_of_ticket_and_question() -> None:
    assert AnonMLAnswer.spends and AnonMLAnswer.is_anonymous
    assert not AnonMLAsk.spends and not AnonMLAsk.is_anonymous
    names = {ANSWER.submission}
    names |= {
        ANSWER.replace(**change).submission
        for change in ({"ticket": b"u" * 32}, {"phase": 4}, {"question": 2})
    }
    assert len(names) == 4
    assert ANSWER.replace(report=b"\x00").submission == ANSWER.submission
    assert ASK.submission is None


def test_submission_separates_phase_and_question() -> None:
    assert (
        ANSWER.replace(phase=1, question=11).submission
        != ANSWER.replace(phase=11, question=1).submission
    )


@pytest.mark.parametrize(
    "change",
    [
        {"ticket": b"t" * 31},
        {"ticket": b"t" * 33},
        {"phase": -1},
        {"question": -1},
        {"phase": True},
        {"report": "x"},
    ],
)
def test_answer_rejects_invalid_fields(change: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError):
        ANSWER.replace(**change)
    body = {**ANSWER.model_dump(exclude={"study"}), **change}
    with pytest.raises(RemoteProtocolError) as caught:
        decode(
            dumps({"type": "anonml.answer", "version": 1, "study": STUDY, "body": body}),
            MESSAGES,
            STUDY,
        )
    assert caught.value.code == "MSG-005"


@pytest.mark.parametrize(
    "change",
    [
        {"points": (float("nan"),)},
        {"cuts": ((float("inf"),),)},
        {"levels": ((-1,),)},
        {"points": (1,)},
    ],
)
def test_publication_rejects_nonfinite_numbers_and_bad_levels(change: dict[str, object]) -> None:
    if change == {"points": (1,)}:
        body = {"phase": 0, "publication": {**AnonMLPublication().model_dump(), **change}}
        with pytest.raises(RemoteProtocolError):
            decode(
                dumps({"type": "anonml.ask", "version": 1, "study": STUDY, "body": body}),
                MESSAGES,
                STUDY,
            )
    else:
        with pytest.raises(LocalProtocolError):
            AnonMLPublication(**change)
