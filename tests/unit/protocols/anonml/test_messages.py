"""Ask and Answer on the wire."""

from __future__ import annotations

import pytest

from anonml_cases import STUDY
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.codec import decode, dumps, encode
from shoal.protocols.anonml.messages import MESSAGES, Answer, Ask, Publication

ASK = Ask(study=STUDY, phase=3, publication=Publication(points=(0.5, 2.0), cuts=((1.0,), (2.0, 3.0)), levels=((0, 2),)))
ANSWER = Answer(study=STUDY, ticket=b"t" * 32, phase=3, question=1, report=b"\x01")


@pytest.mark.parametrize("message", [ASK, ANSWER, Ask(study=STUDY, phase=0, publication=Publication())])
def test_messages_come_back_as_they_were(message: Ask | Answer) -> None:
    assert decode(encode(message), MESSAGES, STUDY) == message


def test_an_answer_is_priced_anonymous_and_counts_once_for_its_ticket_and_question() -> None:
    assert Answer.spends and Answer.is_anonymous
    assert not Ask.spends and not Ask.is_anonymous
    names = {ANSWER.submission}
    names |= {ANSWER.replace(**change).submission for change in ({"ticket": b"u" * 32}, {"phase": 4}, {"question": 2})}
    assert len(names) == 4
    assert ANSWER.replace(report=b"\x00").submission == ANSWER.submission
    assert ASK.submission is None


def test_phase_and_question_cannot_be_taken_for_each_other() -> None:
    assert ANSWER.replace(phase=1, question=11).submission != ANSWER.replace(phase=11, question=1).submission


@pytest.mark.parametrize(
    "change", [{"ticket": b"t" * 31}, {"ticket": b"t" * 33}, {"phase": -1}, {"question": -1}, {"phase": True}, {"report": "x"}]
)
def test_an_answer_that_does_not_fit_cannot_be_made_or_read(change: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError):
        ANSWER.replace(**change)
    body = {**ANSWER.model_dump(exclude={"study"}), **change}
    with pytest.raises(RemoteProtocolError) as caught:
        decode(dumps({"type": "anonml.answer", "version": 1, "study": STUDY, "body": body}), MESSAGES, STUDY)
    assert caught.value.code == "MSG-005"


@pytest.mark.parametrize("change", [{"points": (float("nan"),)}, {"cuts": ((float("inf"),),)}, {"levels": ((-1,),)}, {"points": (1,)}])
def test_a_publication_holds_finite_numbers_and_levels(change: dict[str, object]) -> None:
    if change == {"points": (1,)}:
        body = {"phase": 0, "publication": {**Publication().model_dump(), **change}}
        with pytest.raises(RemoteProtocolError):
            decode(dumps({"type": "anonml.ask", "version": 1, "study": STUDY, "body": body}), MESSAGES, STUDY)
    else:
        with pytest.raises(LocalProtocolError):
            Publication(**change)
