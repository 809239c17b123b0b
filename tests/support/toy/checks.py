"""Checks of any run of the toy protocol, on any driver and with any fault."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.messages.codec import decode
from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.ledger.state import SPENT_STATES
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import AGGREGATOR, MemoryLedger, ProtocolOutcome
from tests.support.toy.protocol import Answer, Study, ToyAggregator


def answers_sent(study: Study, outcome: ProtocolOutcome) -> dict[tuple[str, int], set[bytes]]:
    """Return the different bytes sent for each answer, by peer and round."""
    left: dict[tuple[str, int], set[bytes]] = {}
    for sent in outcome.sent:
        message = decode(sent.payload, ToyAggregator.messages, study.digest)
        if isinstance(message, Answer):
            left.setdefault((sent.sender, message.round), set()).add(sent.payload)
    return left


def spent(ledger: MemoryLedger) -> int:
    """Return the total epsilon of everything sent, in grains; the toy protocol has one unit."""
    return sum(total.spent for total in ledger.totals())


def check(study: Study, outcome: ProtocolOutcome, ledgers: Mapping[str, MemoryLedger]) -> None:
    """Raise AssertionError unless the run kept every promise."""
    left = answers_sent(study, outcome)
    state = outcome.states[AGGREGATOR]
    taken = [(sender, answer.round) for sender, answer in (*state.counted, *state.late)]

    assert not outcome.rejected, "honest machines reject nothing of each other"
    assert not outcome.aborted
    assert not outcome.failed
    assert all(len(payloads) == 1 for payloads in left.values()), "a retry sends the same bytes"
    assert len(taken) == len(set(taken)), "an answer is taken once"
    assert set(taken) <= set(left), "what is taken was sent"
    for name, ledger in ledgers.items():
        states = {
            int(question.removeprefix("round-")): entry.state
            for (_, question), entry in ledger.entries.items()
        }
        mine = {number for sender, number in left if sender == name}
        assert mine <= {number for number, at in states.items() if at in SPENT_STATES}, (
            "what left is spent"
        )
        assert {number for number, at in states.items() if at is ReleaseState.SENT} <= {
            n for s, n in taken if s == name
        }, "what is acknowledged is not lost"
        # A peer that goes down right before its first byte leaves has spent it nevertheless: more,
        # never less.
        assert spent(ledger) == sum(at in SPENT_STATES for at in states.values()) * grains_up(
            study.mechanism.event().epsilon
        )
    ones = [
        sum(answer.report[0] for _, answer in state.counted if answer.round == number)
        for number in study.questions.values()
    ]
    assert outcome.results[AGGREGATOR] == tuple(ones), "the result is the sum of what was counted"


def check_complete(
    study: Study, outcome: ProtocolOutcome, ledgers: Mapping[str, MemoryLedger]
) -> None:
    """Check in addition that everything arrived.

    No peer is absent for good, so every answer was acknowledged in the end, and each peer spent
    exactly what it sent.
    """
    check(study, outcome, ledgers)
    left = answers_sent(study, outcome)
    for name, ledger in ledgers.items():
        assert all(entry.state is ReleaseState.SENT for entry in ledger.entries.values())
        price = sum(
            grains_up(study.mechanism.event().epsilon) for sender, _ in left if sender == name
        )
        assert spent(ledger) == price, "the ledger's total is exactly what left"
        assert outcome.results[name] == study.n_rounds
    state = outcome.states[AGGREGATOR]
    assert len(state.counted) + len(state.late) == study.n_rounds * study.n_peers
