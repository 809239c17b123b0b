"""Messages made from private data are sent only as priced releases."""

from __future__ import annotations

import pytest

from shoal.errors import LocalProtocolError
from shoal.protocols.base import Release
from tests.support.toy.protocol import Answer, Ask

STUDY = bytes(32)
ASK, ANSWER = Ask(study=STUDY, round=1), Answer(study=STUDY, round=1, report=b"\x01")


def test_release_rejects_message_that_does_not_spend() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        Release("round-1", ASK)
    assert caught.value.code == "PROTO-001"
    assert Release("round-1", ANSWER).message is ANSWER
