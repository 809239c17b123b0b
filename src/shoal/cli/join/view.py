"""The consent dialogue and the output of ``shoal join``.

`shoal.cli.join` and ``shoal leave`` call these functions. Text of a study or a coordinator must be
escaped before it is printed. Only "y" or "yes" counts as consent.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from shoal.cli.runtime import interrupt_immediately
from shoal.data.schema import FittedRows
from shoal.messages.codec import to_json
from shoal.participant.consent import PricedOffer
from shoal.participant.preview import ShownAnswer
from shoal.privacy.ledger.state import SPENT_STATES, LedgerEntry, sum_prices
from shoal.privacy.rounding import format_epsilon, from_delta_grains, from_grains
from shoal.study.manifest import shorten_digest
from shoal.text import escape_text, format_count

PROMPT = "Take part?   [y] yes   [N] no   [p] show an example   [d] technical details  "
_RELAY_WARNING = (
    "this is your first contact with this coordinator, and only the relay says which coordinator "
    "it is: the relay could answer in its place and read what you send. "
    "To be safe, ask the analyst for the whole digest of the study and give it: --study DIGEST"
)
_MAX_CHARACTERS = 2_000
"""Most characters of a payload that are printed; of a longer one the beginning is printed."""


async def ask_for_consent(
    label: str,
    details: str,
    preview: Callable[[], str],
    ask: Callable[[str], str] = input,
) -> bool:
    """Show the label and ask for consent; return True for yes, and False for any other answer.

    Parameters
    ----------
    details
        Everything that the label leaves out.
    preview
        Draws an example, and returns a text that shows it.
    ask
        Prints a prompt and returns the answer.

    Raises
    ------
    KeyboardInterrupt
        The person pressed Ctrl-C.
    """
    print(label)
    while True:
        # A person who has pressed Ctrl-C already is not asked.
        await asyncio.sleep(0)
        try:
            with interrupt_immediately():
                answer = ask(PROMPT).strip().lower()
        except EOFError:
            print()
            return False
        except KeyboardInterrupt:
            print()
            raise
        match answer:
            case "p":
                print(preview())
            case "d":
                print(details)
            case _:
                return answer in ("y", "yes")


def format_label(
    priced_offer: PricedOffer, path_description: str, *, rests_on_relay: bool = False
) -> str:
    """Return the label, the roster, the network path, and a warning about a relay."""
    lines = [
        f"{'with':<10}{escape_text(member.name)}, key {shorten_digest(member.key)}"
        for member in priced_offer.manifest.roster
    ]
    warnings = [f"{'warning':<10}{_RELAY_WARNING}"] if rests_on_relay else []
    return "\n".join(
        [str(priced_offer.statement), *lines, f"{'connects':<10}{path_description}", *warnings]
    )


def make_label_data(priced_offer: PricedOffer) -> dict[str, object]:
    """Return the label and the roster with whole keys, for ``--json``."""
    roster = [
        {"name": member.name, "key": member.key.hex()} for member in priced_offer.manifest.roster
    ]
    return {"label": priced_offer.statement.to_dict(), "roster": roster}


def format_details(priced_offer: PricedOffer, url: str, key: bytes) -> str:
    """Return everything about a study that is not on its label."""
    rows = [
        ("digest", priced_offer.manifest.digest.hex()),
        ("from", f"{escape_text(url)}, key {key.hex()}"),
        *(("release", str(release)) for release in priced_offer.plan.releases),
        ("total", str(priced_offer.plan.total_loss)),
        *(("note", note) for note in priced_offer.plan.notes),
        *(
            ("roster", f"{escape_text(member.name)} {member.key.hex()}")
            for member in priced_offer.manifest.roster
        ),
    ]
    return "\n".join(f"{head:<10}{line}" for head, line in rows)


def format_misfits(fitted: FittedRows) -> list[str]:
    """Return lines about values that were changed and rows that were left out; empty if none.

    They are for the owner of the data, and are never sent.
    """

    def list_counts(counts: Mapping[str, int]) -> str:
        return ", ".join(f"{escape_text(name)} {n:,}" for name, n in counts.items())

    lines = []
    if fitted.changed:
        lines.append(
            "Outside the declared ranges and values, moved to the end of the range or counted as "
            f"missing: {list_counts(fitted.changed)}."
        )
    if fitted.n_left_out:
        columns = f" ({list_counts(fitted.unusable)})" if fitted.unusable else ""
        lines.append(f"{format_count(fitted.n_left_out, 'row')} left out{columns}.")
    return [*lines, "These counts stay on this computer."] if lines else []


def format_example(answers: Sequence[ShownAnswer], reason: str, note: str) -> str:
    """Return example answers, marked as such; `reason` if there are none."""
    if not answers:
        return reason
    head = (
        "EXAMPLE. These bytes were drawn for this preview. They are not stored and will not be "
        f"sent.{f' {note}' if note else ''} If you take part, other noise is drawn once, after you "
        "have agreed. You can see that answer after it has arrived."
    )
    return "\n".join([head, *_format_answers(answers)])


def format_sent_answers(answers: Sequence[ShownAnswer], n_waiting: int) -> str:
    """Return the answers that have arrived, and how many are not shown yet."""
    parts = [f"{format_count(len(answers), 'answer')} sent. These are the bytes that left:"]
    waiting = (
        f"{format_count(n_waiting, 'answer')} not sent yet. An answer is shown after it has "
        "arrived: if you could see it and then leave, the answers that are sent would reveal more "
        "than their price says."
    )
    return "\n".join(
        [
            *([*parts, *_format_answers(answers)] if answers else ["No answer was sent."]),
            *([f"\n{waiting}"] if n_waiting else []),
        ]
    )


def _format_answers(answers: Sequence[ShownAnswer]) -> list[str]:
    """Return the bytes of each answer, as hexadecimal digits and as JSON."""
    return [
        line
        for one in answers
        for line in (
            f"\n{escape_text(one.question)}, {format_count(len(one.payload), 'byte')}",
            _shorten(one.payload.hex()),
            _shorten(to_json(one.message)),
        )
    ]


def _shorten(text: str) -> str:
    return (
        text
        if len(text) <= _MAX_CHARACTERS
        else f"{text[:_MAX_CHARACTERS]}... ({len(text):,} characters; --json prints all)"
    )


def make_answers_data(answers: Sequence[ShownAnswer]) -> list[dict[str, object]]:
    """Return answers for ``--json``."""
    return [
        {"question": one.question, "bytes": one.payload.hex(), "message": to_json(one.message)}
        for one in answers
    ]


def make_sent_data(entries: Sequence[LedgerEntry]) -> dict[str, object]:
    """Return totals of what was sent in a study, for ``--json``; a study has one unit."""
    spent = [entry for entry in entries if entry.state in SPENT_STATES]
    scope = spent[0].event.scope if spent else None
    epsilon, delta = sum_prices(spent)
    return {
        "questions": len(spent),
        "bytes": sum(entry.size or 0 for entry in spent),
        "epsilon": float(from_grains(epsilon)),
        "delta": float(from_delta_grains(delta)),
        "unit": None if scope is None else scope.unit.value,
        "relation": None if scope is None else scope.relation.value,
    }


def format_sent(entries: Sequence[LedgerEntry]) -> str:
    """Return one line about what was sent in a study."""
    spent = [entry for entry in entries if entry.state in SPENT_STATES]
    if not spent:
        return "nothing"
    grains, delta_grains = sum_prices(spent)
    epsilon, delta = from_grains(grains), from_delta_grains(delta_grains)
    n_bytes, scope = sum(entry.size or 0 for entry in spent), spent[0].event.scope
    price = (
        f"epsilon {format_epsilon(epsilon)}, delta {format_epsilon(delta)} (unit: "
        f"{scope.unit.value}, relation: {scope.relation.value})"
    )
    return f"{format_count(len(spent), 'answer')}, {format_count(n_bytes, 'byte')}, {price}"


@contextmanager
def show_progress(title: str) -> Iterator[Callable[[str], None]]:
    """Yield a callback that prints progress to standard error.

    On a terminal each line replaces the last one. Elsewhere each line is printed once.
    """
    # Earlier output must appear first.
    sys.stdout.flush()
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.markup import escape

        with Console(stderr=True).status(escape(escape_text(title))) as status:
            yield lambda line: status.update(escape(escape_text(f"{title}: {line}")))
        return
    last = ""

    def print_line(line: str) -> None:
        nonlocal last
        if line != last:
            print(escape_text(line), file=sys.stderr, flush=True)
        last = line

    yield print_line
