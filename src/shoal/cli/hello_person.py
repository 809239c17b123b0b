"""One person of ``shoal hello``: the true answer, what leaves instead, what that can reveal, and what the ledger writes down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.clock import SystemClock
from shoal.entropy import Entropy
from shoal.mechanisms.response import RandomResponse
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.rounding import from_grains, show, show_allowed
from shoal.study.odds import odds_of

ANSWERS = ("no", "yes")
QUESTION = "did you sleep badly this week?"
_STUDY = "hello"


def one_person(epsilon: float, entropy: Entropy, path: Path) -> dict[str, Any]:
    """One person's release, through every state of a ledger: reserved, drawn and stored, sending, sent; then a retry.

    Parameters
    ----------
    epsilon
        Its price.
    entropy
        Where the truth and the noise come from.
    path
        The person's ledger, which is made.

    Privacy
    -------
    Unit person, relation replace, against everyone: the price is that of randomised response with two answers.
    """
    survey = RandomResponse(epsilon, len(ANSWERS))
    truth, event = entropy.below(len(ANSWERS)), survey.event()
    with LedgerFile(path, SystemClock()) as ledger:
        ledger.reserve(_STUDY, "sleep", event.reading("sleep"), source="me", recipient="nobody", title="Who sleeps badly?")
        ledger.store(_STUDY, "sleep", survey.encode(survey.report(truth, entropy)))
        sent = ledger.mark_sending(_STUDY, "sleep")
        ledger.mark_sent(_STUDY, "sleep")
        [total] = ledger.totals()
        [limit] = [usage for usage in ledger.limits() if usage.limit.unit is survey.scope.unit]
        return {
            "truth": ANSWERS[truth],
            "sent": ANSWERS[survey.decode(sent)],
            "bytes": sent.hex(),
            "retry": ledger.mark_sending(_STUDY, "sleep").hex(),
            "truth_chance": float(survey.p),
            "event": event.to_dict(),
            "odds": [str(sentence) for sentence in odds_of(event.scope, event.epsilon, event.delta, None)],
            "state": ledger.entry(_STUDY, "sleep").state.value,
            "spent": show(from_grains(total.spent)),
            "limit": show_allowed(from_grains(limit.limit.grains or 0)),
            "period": limit.limit.period.value,
            "head": str(ledger.verify()),
        }


def person_lines(person: dict[str, Any]) -> list[tuple[str, str]]:
    """The same in words."""
    event = person["event"]
    scope = f"for one {event['unit']}, relation {event['relation']}, against {event['adversary']}"
    chance = f"the truth with chance {100 * person['truth_chance']:.1f} %, else the other answer"
    return [
        ("one person", f"is asked: {QUESTION}  {' / '.join(ANSWERS)}"),
        ("true answer", f"{person['truth']:<4}stays on the device"),
        ("what leaves", f"{person['sent']:<4}the byte {person['bytes']}: {chance}; a retry sends the same byte"),
        ("the price", f"epsilon {show(event['epsilon'])}, delta 0, {scope}"),
        *(("it can reveal" if i == 0 else "", sentence) for i, sentence in enumerate(person["odds"])),
        (
            "the ledger",
            f"{person['state']}; spent {person['spent']} of {person['limit']} a {person['period']}; head {person['head'][:21]}...",
        ),
    ]
