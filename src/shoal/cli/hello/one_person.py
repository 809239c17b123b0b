"""One person of ``shoal hello``: true answer, sent answer, odds and ledger.

The demonstration calls `run_one_person` with the system's randomness, and prints
`describe_person`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.clock import SystemClock
from shoal.entropy import Entropy
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.rounding import format_epsilon, format_epsilon_down, from_grains
from shoal.study.odds import compute_odds

ANSWERS = ("no", "yes")
QUESTION = "did you sleep badly this week?"
_STUDY = "hello"


def run_one_person(epsilon: float, entropy: Entropy, path: Path) -> dict[str, Any]:
    """Run one release through all states of a ledger, and return its record.

    The states are reserved, drawn and stored, sending, sent; then a retry sends the same bytes.

    Parameters
    ----------
    entropy
        Source of the true answer and of the noise.
    path
        The person's ledger, a new file.

    Privacy
    -------
    Unit person, relation replace, against everyone: the price is that of randomised response with
    two answers.
    """
    survey = RandomizedResponse(epsilon, len(ANSWERS))
    truth, event = entropy.below(len(ANSWERS)), survey.event()
    with LedgerFile(path, SystemClock()) as ledger:
        ledger.reserve(
            _STUDY,
            "sleep",
            event.with_reads("sleep"),
            source="me",
            recipient="nobody",
            title="Who sleeps badly?",
        )
        ledger.store(_STUDY, "sleep", survey.encode(survey.report(truth, entropy)))
        sent = ledger.mark_sending(_STUDY, "sleep")
        ledger.mark_sent(_STUDY, "sleep")
        [total], [limit] = ledger.totals(), ledger.limits()
        return {
            "truth": ANSWERS[truth],
            "sent": ANSWERS[survey.decode(sent)],
            "bytes": sent.hex(),
            "retry": ledger.mark_sending(_STUDY, "sleep").hex(),
            "truth_chance": float(survey.p),
            "event": event.to_dict(),
            "odds": [
                str(sentence)
                for sentence in compute_odds(event.scope, event.epsilon, event.delta, None)
            ],
            "state": ledger.find_entry(_STUDY, "sleep").state.value,
            "spent": format_epsilon(from_grains(total.spent)),
            "limit": format_epsilon_down(from_grains(limit.limit.grains or 0)),
            "period": limit.limit.period.value,
            "head": str(ledger.verify()),
        }


def describe_person(person: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines about one person."""
    event = person["event"]
    scope = f"for one {event['unit']}, relation {event['relation']}, against {event['adversary']}"
    chance = (
        f"the truth with probability {100 * person['truth_chance']:.1f} %, otherwise the other "
        "answer"
    )
    return [
        ("question", f"{QUESTION}  {' / '.join(ANSWERS)}"),
        ("true answer", f"{person['truth']:<4}stays on the device"),
        (
            "sent answer",
            f"{person['sent']:<4}byte {person['bytes']}: {chance}; a retry sends the same byte",
        ),
        ("price", f"epsilon {format_epsilon(event['epsilon'])}, delta 0, {scope}"),
        *(
            ("it can reveal" if i == 0 else "", sentence)
            for i, sentence in enumerate(person["odds"])
        ),
        (
            "ledger",
            f"{person['state']}; spent {person['spent']} of {person['limit']} a "
            f"{person['period']}; head {person['head'][:21]}...",
        ),
    ]
