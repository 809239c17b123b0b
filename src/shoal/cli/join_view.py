"""How ``shoal join`` speaks with a person: the label and the question, the bytes that are stored, what goes on, and what came of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from shoal.command_tasks import raising_at_once
from shoal.messages.codec import to_json
from shoal.names import counted, shown
from shoal.participant.consent import Asked
from shoal.participant.preview import Drawn
from shoal.privacy.ledger import SPENT, Entry
from shoal.privacy.rounding import from_delta_grains, from_grains, show
from shoal.study.manifest import short

QUESTION = "[p] show what would be sent   [d] details   [y] take part   [N] no  "
NOTHING_DRAWN = {
    "sdq": "What leaves is masked together with the other databases, after they have answered: there is nothing to show before that.",
    "pfds": "What leaves depends on your place among the holders, which you have once you take part: there is nothing to show before that.",
    "anonml": "No question for you is open yet: there is nothing to show before one is.",
    "ddml": "No update is drawn: there are no rows, or all updates are drawn already.",
}
_ON_ITS_WORD = (
    "you have not met this coordinator, and the relay alone says which one it is: it could answer in its place, and read what you send. "
    "To be sure, name the study by its whole digest, as its analyst tells it: --study DIGEST"
)
_LONGEST = 2_000
"""Digits of a payload that are printed; a larger one is shown by its beginning."""


async def converse(label: str, details: str, preview: Callable[[], Awaitable[str]], ask: Callable[[str], str] = input) -> bool:
    """Show the label and ask until the answer is yes or no; anything that is neither is no.

    Parameters
    ----------
    label, details
        The label, and what it leaves out.
    preview
        Draws what would be sent, holds it, and says what it is.
    ask
        Puts a question to the person, and returns the answer.

    Raises
    ------
    KeyboardInterrupt
        The person interrupts, in place of an answer.
    """
    print(label)
    while True:
        # Whoever has interrupted already is not asked.
        await asyncio.sleep(0)
        try:
            with raising_at_once():
                answer = ask(QUESTION).strip().lower()
        except EOFError:
            print()
            return False
        except KeyboardInterrupt:
            print()
            raise
        match answer:
            case "p":
                print(await preview())
            case "d":
                print(details)
            case _:
                return answer in ("y", "yes")


def label_text(asked: Asked, way: str, *, rests_on_relay: bool = False) -> str:
    """The label; with whom a roster has one sum, by names and short keys; which way all goes, and whether that rests on a relay's word."""
    lines = [f"{'with':<10}{shown(member.name)}, key {short(member.key)}" for member in asked.manifest.roster]
    doubts = [f"{'but':<10}{_ON_ITS_WORD}"] if rests_on_relay else []
    return "\n".join([str(asked.statement), *lines, f"{'sent':<10}{way}", *doubts])


def label_data(asked: Asked) -> dict[str, object]:
    """The same for programs, with whole keys."""
    roster = [{"name": member.name, "key": member.key.hex()} for member in asked.manifest.roster]
    return {"label": asked.statement.to_dict(), "roster": roster}


def details_text(asked: Asked, url: str, key: bytes) -> str:
    """Everything about a study that is not on its label."""
    rows = [
        ("digest", asked.manifest.digest.hex()),
        ("from", f"{shown(url)}, whose key is {key.hex()}"),
        *(("release", str(release)) for release in asked.plan.releases),
        ("total", str(asked.plan.everything)),
        *(("note", note) for note in asked.plan.notes),
        *(("roster", f"{shown(member.name)} {member.key.hex()}") for member in asked.manifest.roster),
    ]
    return "\n".join(f"{head:<10}{line}" for head, line in rows)


def drawn_text(drawn: Sequence[Drawn], nothing: str, give_up: str) -> str:
    """The stored bytes of each answer, in hexadecimal digits and in words; and the command that gives them up. Or why there are none."""
    if not drawn:
        return nothing
    parts = [f"Nothing was sent. {counted(len(drawn), 'answer')} drawn, held in your ledger, and what a later join sends:"]
    for one in drawn:
        readable = to_json(one.message)
        parts.append(f"\n{shown(one.question)}, {counted(len(one.payload), 'byte')}\n{_cut(one.payload.hex())}\n{_cut(readable)}")
    return "\n".join([*parts, f"\nTo give them up: {give_up}"])


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters; --json has all)"


def drawn_data(drawn: Sequence[Drawn]) -> list[dict[str, object]]:
    """The same for programs."""
    return [{"question": one.question, "bytes": one.payload.hex(), "message": to_json(one.message)} for one in drawn]


def sent_data(entries: Sequence[Entry]) -> dict[str, object]:
    """What has left in a study, in figures: of one unit and relation, as a study has them."""
    spent = [entry for entry in entries if entry.state in SPENT]
    scope = spent[0].event.scope if spent else None
    return {
        "questions": len(spent),
        "bytes": sum(entry.size or 0 for entry in spent),
        "epsilon": float(from_grains(sum(entry.cost for entry in spent))),
        "delta": float(from_delta_grains(sum(entry.delta for entry in spent))),
        "unit": None if scope is None else scope.unit.value,
        "relation": None if scope is None else scope.relation.value,
    }


def sent_text(entries: Sequence[Entry]) -> str:
    """What has left in a study, in a line."""
    spent = [entry for entry in entries if entry.state in SPENT]
    if not spent:
        return "nothing"
    epsilon, delta = from_grains(sum(entry.cost for entry in spent)), from_delta_grains(sum(entry.delta for entry in spent))
    n_bytes, scope = sum(entry.size or 0 for entry in spent), spent[0].event.scope
    price = f"epsilon {show(epsilon)}, delta {show(delta)} (unit: {scope.unit.value}, relation: {scope.relation.value})"
    return f"{counted(len(spent), 'answer')}, {counted(n_bytes, 'byte')}, {price}"


@contextmanager
def progress(title: str) -> Iterator[Callable[[str], None]]:
    """A function that says what goes on, on standard error: in place on a terminal, and in lines elsewhere, each once."""
    # What was printed before is to be read before.
    sys.stdout.flush()
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.markup import escape

        with Console(stderr=True).status(escape(shown(title))) as status:
            yield lambda line: status.update(escape(shown(f"{title}: {line}")))
        return
    last = ""

    def say(line: str) -> None:
        nonlocal last
        if line != last:
            print(shown(line), file=sys.stderr, flush=True)
        last = line

    yield say
