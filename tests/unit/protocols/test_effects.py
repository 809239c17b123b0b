"""What is made from private data leaves only as a priced release."""

from __future__ import annotations

import pytest

from shoal.errors import LocalProtocolError
from shoal.protocols.base import Release
from toy.protocol import Answer, Ask

STUDY = bytes(32)
ASK, ANSWER = Ask(study=STUDY, round=1), Answer(study=STUDY, round=1, report=b"\x01")


def test_a_message_that_does_not_say_that_it_spends_cannot_be_released() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        Release("round-1", ASK)
    assert caught.value.code == "PROTO-001"
    assert Release("round-1", ANSWER).message is ANSWER
