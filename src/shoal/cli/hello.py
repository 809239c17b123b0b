"""``shoal hello``: one person's true answer, what leaves instead, what that can reveal, and what a crowd of such answers teaches."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from shoal import __version__
from shoal.cli.output import emit
from shoal.clock import SystemClock
from shoal.entropy import Entropy, SystemEntropy, require_system
from shoal.errors import StoreError, UsageError
from shoal.mechanisms.response import RandomResponse
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.rounding import from_grains, show, show_allowed
from shoal.protocols.anonml.params import Plus
from shoal.protocols.anonml.population import make_script, simulate
from shoal.sim.people import SCHEMA, make_people
from shoal.study.odds import odds_of

ANSWERS = ("no", "yes")
CROWD = 20_000
SHARE = 0.3
PEOPLE, UNSEEN = 100_000, 20_000
"""Made-up people who answer, and others on whom the model is tried."""
STUDY = "hello"
LEAST, MOST = 0.1, 4.0
"""Below, a crowd of this size says nothing; above, a new ledger refuses."""


def hello(*, epsilon: float = 1.0, json: bool = False) -> None:
    """Show what would leave a person's device in place of the truth, and what that can reveal.

    Nothing is sent and nothing is asked of you: the person, the crowd and the ledger are made up for the demonstration. The
    randomness and the arithmetic are those of a real study.

    Parameters
    ----------
    epsilon
        Budget of the one answer, 0.1 to 4.
    json
        Print one JSON object.
    """
    if not LEAST <= epsilon <= MOST:
        raise UsageError(
            "USAGE-001", f"The demonstration takes an epsilon from {LEAST} to {MOST}, not {epsilon}.", fix="shoal hello --epsilon 2"
        )
    entropy = require_system(SystemEntropy())
    survey = RandomResponse(epsilon, len(ANSWERS))
    try:
        folder = TemporaryDirectory()
    except OSError as error:
        raise StoreError(
            "LEDGER-001",
            f"The demonstration's ledger has no place to lie: {error.strerror}.",
            fix="Set TMPDIR to a directory that you can write to.",
        ) from None
    with folder as name:
        person = _answer(survey, entropy, Path(name) / "ledger.db")
    crowd = _crowd(survey, entropy)
    model = _model(epsilon, entropy)
    event = survey.event()
    odds = [str(sentence) for sentence in odds_of(event.scope, event.epsilon, event.delta, None)]
    data = {"version": __version__, "person": person, "event": event.to_dict(), "odds": odds, "crowd": crowd, "model": model}
    emit(data, _text(person, crowd, model, odds, survey), json=json, next_command="shoal new my-study --protocol anonml")


def _answer(survey: RandomResponse, entropy: Entropy, path: Path) -> dict[str, Any]:
    """One person's release, through every state of a ledger: reserved, drawn and stored, sending, sent; then a retry."""
    truth = entropy.below(len(ANSWERS))
    with LedgerFile(path, SystemClock()) as ledger:
        ledger.reserve(STUDY, "sleep", survey.event().reading("sleep"), source="me", recipient="nobody", title="Who sleeps badly?")
        ledger.store(STUDY, "sleep", survey.encode(survey.report(truth, entropy)))
        sent = ledger.mark_sending(STUDY, "sleep")
        ledger.mark_sent(STUDY, "sleep")
        [total] = ledger.totals()
        [limit] = [usage for usage in ledger.limits() if usage.limit.unit is survey.scope.unit]
        return {
            "truth": ANSWERS[truth],
            "sent": ANSWERS[survey.decode(sent)],
            "bytes": sent.hex(),
            "retry": ledger.mark_sending(STUDY, "sleep").hex(),
            "state": ledger.entry(STUDY, "sleep").state.value,
            "spent": show(from_grains(total.spent)),
            "limit": show_allowed(from_grains(limit.limit.grains or 0)),
            "period": limit.limit.period.value,
            "head": str(ledger.verify()),
        }


def _crowd(survey: RandomResponse, entropy: Entropy) -> dict[str, float]:
    """What the answers of a crowd say together, though each alone says little."""
    truth = (np.arange(CROWD) < SHARE * CROWD).astype(np.int64)
    noisy_counts = survey.tally(survey.report_many(truth, entropy))
    counts_hat = survey.debias(noisy_counts, CROWD)
    return {
        "people": CROWD,
        "true_share": SHARE,
        "noisy_share": float(noisy_counts[1]) / CROWD,
        "estimated_share": float(counts_hat[1]) / CROWD,
        "standard_error": (survey.variance(SHARE) / CROWD) ** 0.5,
    }


def _model(epsilon: float, entropy: Entropy) -> dict[str, float]:
    """AnonML on made-up people, one randomised answer each, beside guessing and beside knowing how the people were made."""
    asked, unseen = make_people(PEOPLE, entropy), make_people(UNSEEN, entropy)
    learned = simulate(make_script(Plus(SCHEMA, epsilon, PEOPLE), b""), asked.columns, asked.labels, entropy)
    guess = int(asked.labels.mean() > 0.5)
    return {
        "people": PEOPLE,
        "features": len(SCHEMA.features),
        "guessing": float((unseen.labels == guess).mean()),
        "private": float((learned.model.decide(unseen.columns) == unseen.labels).mean()),
        "truth": float(((unseen.chances > 0.5) == unseen.labels).mean()),
    }


def _text(person: dict[str, Any], crowd: dict[str, float], model: dict[str, float], odds: list[str], survey: RandomResponse) -> str:
    scope, price = survey.scope, show(survey.event().epsilon)
    share = {name: f"{100 * value:.1f} %" for name, value in {**model, **crowd}.items()}
    rows = [
        ("one person", f"is asked: did you sleep badly this week?  {' / '.join(ANSWERS)}"),
        ("true answer", f"{person['truth']:<4} stays here"),
        (
            "what leaves",
            f"{person['sent']:<4} the byte {person['bytes']}: the truth with chance {100 * float(survey.p):.1f} %, else the other answer",
        ),
        ("a retry", f"sends the same byte {person['retry']} again; noise is drawn once"),
        ("the price", f"epsilon {price}, delta 0, for one {scope.unit}, relation {scope.relation}, against {scope.adversary}"),
        *(("it can reveal" if i == 0 else "", sentence) for i, sentence in enumerate(odds)),
        (
            "the ledger",
            f"{person['state']}; spent {person['spent']} of {person['limit']} a {person['period']}; head {person['head'][:21]}...",
        ),
        ("a crowd", f'of {crowd["people"]:,} people, of whom {share["true_share"]} sleep badly, sends {share["noisy_share"]} "yes"'),
        (
            "it is learned",
            f"{share['estimated_share']} ± {share['standard_error']} (standard error) sleep badly; of each, no more than the odds above",
        ),
        (
            "a model",
            f"AnonML: {model['people']:,} people, {model['features']} features, one answer each, about one feature, the label, or both",
        ),
        (
            "it predicts",
            f"{share['private']} of other people rightly; guessing {share['guessing']}, knowing how they were made {share['truth']}",
        ),
    ]
    head = f"shoal {__version__}  learn from the shoal, not the fish"
    note = "Nothing was sent. Person, crowds and ledger are made up; randomness and arithmetic are those of a real study."
    return "\n".join([head, "", *(f"{name:<14} {text}" for name, text in rows), "", note])
