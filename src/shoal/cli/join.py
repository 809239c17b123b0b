"""``shoal join``: read the label, agree or not, answer, wait, and go on after a restart."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.cli.check import read_table
from shoal.cli.join_view import (
    NOTHING_DRAWN,
    converse,
    details_text,
    drawn_data,
    drawn_text,
    label_data,
    label_text,
    progress,
    sent_data,
    sent_text,
)
from shoal.cli.ledger_files import source_name
from shoal.cli.ledger_view import total_data, totals_text
from shoal.cli.output import emit
from shoal.clock import SystemClock
from shoal.command_tasks import run_tasks
from shoal.entropy import SystemEntropy
from shoal.errors import BudgetError, ConsentError, SpecError, UsageError
from shoal.names import shell_word, shown
from shoal.participant.consent import Asked, refuse_price
from shoal.participant.journal import Joined, Role
from shoal.participant.ledger_file import default_path
from shoal.participant.offers import Offer, names_all
from shoal.participant.outputs import prepared
from shoal.participant.peers import encode
from shoal.participant.preview import Drawn
from shoal.participant.runner import Finished
from shoal.participant.session import Session, opened
from shoal.participant.via import Via, via_of
from shoal.privacy.rounding import show
from shoal.study.manifest import Manifest
from shoal.study.typeset import moment
from shoal.table_files import Table

_RELAYED = "ohttp"


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    url: str
    data: str | None
    study: str | None
    max_epsilon: float | None
    yes: bool
    preview: bool
    via: str | None
    ledger: Path | None
    invitation: str | None
    ca: Path | None
    out: Path | None
    read_only: bool
    review: bool
    json: bool

    @property
    def role(self) -> Role:
        """What the participant is to do."""
        return "reader" if self.read_only else "sharer"

    @property
    def places(self) -> str:
        """Where the ledger and the certificates are, for a command that is to find them again."""
        given = (("--ledger", self.ledger), ("--ca", self.ca))
        return "".join(f" {option} {shell_word(path)}" for option, path in given if path is not None)

    def way(self, manifest: Manifest | None = None) -> Via:
        """How to reach the coordinator, as far as that is known without the study, or with it."""
        return via_of(self.via, self.url, SystemEntropy(), ca=self.ca, manifest=manifest)

    @property
    def can_ask(self) -> bool:
        """Whether there is somebody to ask."""
        return sys.stdin.isatty() and sys.stdout.isatty() and not self.json


def join(
    url: str,
    /,
    *,
    data: str | None = None,
    study: str | None = None,
    max_epsilon: str | None = None,
    yes: bool = False,
    preview: bool = False,
    via: str | None = None,
    ledger: Path | None = None,
    invitation: str | None = None,
    ca: Path | None = None,
    out: Path | None = None,
    read_only: bool = False,
    review: bool = False,
    json: bool = False,
) -> None:
    """Take part in a study: read its label, agree, answer and wait. The same command again goes on where it was.

    Without a terminal nothing is asked, and --yes and --max-epsilon are needed; and --study, for a new study of a coordinator you know.

    Parameters
    ----------
    url
        The coordinator's address.
    data
        Your table (.csv, .csv.gz, .parquet, .db#table). It is read here and goes nowhere. Not needed again in a study that you are in.
    study
        The digest of the study, or its beginning, where the coordinator has several. Its 64 digits are good for this study and no other.
    max_epsilon
        The most epsilon that all you send may cost, as your ledger counts it; a study that asks for more is refused.
    yes
        Agree without being asked, up to --max-epsilon.
    preview
        Show what would be sent, in the bytes that are stored, and send nothing. They are drawn and held in your ledger for later.
    via
        How to reach the coordinator: direct, ohttp:RELAY-URL, tor or tor:HOST:PORT. Without it through the study's relay, if it has one.
    ledger
        The ledger file; SHOAL_LEDGER or the user's data directory where it is not given.
    invitation
        The code with which you were invited.
    ca
        Certificates to trust in place of the system's, in PEM form.
    out
        A directory for what is learned: the release of pfds, or the model, which is waited for.
    read_only
        Share nothing, and take what the holders of a pfds study share.
    review
        Read a study again that has changed since you agreed, and agree anew or not.
    json
        Print one JSON object.
    """
    if preview and read_only:
        raise UsageError(
            "USAGE-001", "--preview shows what would be sent, and with --read-only nothing is.", fix="Leave out one of the two."
        )
    if yes and max_epsilon is None:
        raise UsageError("USAGE-001", "--yes agrees up to a price, and none is given.", fix="--yes --max-epsilon 1")
    options = Options(url, data, study, _epsilon(max_epsilon), yes, preview, via, ledger, invitation, ca, out, read_only, review, json)
    if out is not None:
        prepared(out)
    run_tasks(_join(options))


async def _join(options: Options) -> None:
    async with AsyncExitStack() as stack:
        path = options.ledger or default_path()
        session = await stack.enter_async_context(opened(path, options.url, SystemClock(), SystemEntropy(), options.ca, options.way()))
        session = await _rerouted(stack, options, session, _remembered(options, session))
        offer = await session.offer(options.study, is_review=options.review)
        if options.via is None:
            session = await _rerouted(stack, options, session, offer.manifest)
        session.refuse_role(offer, options.role)
        if session.taken_up(offer) is None:
            await session.client.via.check(offer.manifest)
        rests_on_relay = _rests_on_relay(options, session, offer)
        source = _source(options, session.journal.study(offer.digest))
        table, asked = _table(offer, source), session.asked(offer, source)
        if options.role == "sharer" and session.taken_up(offer) is None:
            session.refuse_if_voided(offer)
        if options.preview:
            await _preview(options, session, offer, asked, table)
            return
        if session.taken_up(offer) is None:
            if not options.review:
                session.refuse_if_changed(offer)
            if options.role == "sharer":
                await _agree(options, session, offer, asked, _needed(table))
            session.agree(offer, source, role=options.role, invitation=options.invitation, is_reviewed=options.review)
        else:
            _go_on(options, session, offer, asked)
        print(_how_long(offer.manifest), file=sys.stderr, flush=True)
        with progress(offer.manifest.study.title) as say:
            finished = await session.take_part(offer, table, say, options.role)
            kept = None
            if options.out is not None and finished.standing != "aborted":
                kept = await session.keep(offer, finished, options.out, say)
        _report(options, session, offer, asked, finished, kept, rests_on_relay=rests_on_relay)


def _how_long(manifest: Manifest) -> str:
    """Until when this may take, for somebody who looks at a line that does not change."""
    closes = manifest.study.participation.closes
    until = "until the study ends" if closes is None else f"until the study ends, at {moment(closes)} at the latest"
    return f"takes part {until}; Ctrl-C stops it here, and the same command goes on"


def _remembered(options: Options, session: Session) -> Manifest | None:
    """The one study of this coordinator that is meant and was met before, so that not even its manifest is asked for another way."""
    met = [one for one in session.journal.studies() if one.url == session.client.url]
    meant = [one for one in met if options.study is None or one.study.startswith(options.study.replace("-", "").lower())]
    # What an earlier version of shoal has written may be no manifest now; then it is asked for anew.
    with suppress(SpecError):
        return Manifest.from_bytes(meant[0].manifest) if len(meant) == 1 else None
    return None


async def _rerouted(stack: AsyncExitStack, options: Options, session: Session, manifest: Manifest | None) -> Session:
    """The session by the way that is right for a study: where none is given, through the relay that its manifest names.

    Through a relay that is given, what is sealed to the key in a manifest that was met before needs no word of the relay's.
    """
    if manifest is None:
        return session
    way = options.way(manifest)
    if way.name == session.client.via.name != _RELAYED:
        return session
    return replace(session, client=await stack.enter_async_context(session.client.through(way)))


def _go_on(options: Options, session: Session, offer: Offer, asked: Asked) -> None:
    """Go on with a study that was agreed to, if it costs no more than is said now."""
    if options.role == "sharer":
        refuse_price(asked, options.max_epsilon)
    if options.invitation is not None:
        session.journal.invited(offer.digest, options.invitation)


def _source(options: Options, known: Joined | None) -> str:
    """Which data the study is about: what the command line says, or what was said before. A study is answered from one table."""
    given = "" if options.data is None else source_name(options.data)
    if known is None:
        return given
    if options.data is not None and given != known.source:
        what = f"You are in this study with {shown(known.source)}, and not with {shown(given)}."
        why = "A study is answered from one table: an answer from each would cost twice."
        raise UsageError("USAGE-001", what, why=why, fix="Leave out --data.")
    return known.source


def _table(offer: Offer, source: str) -> Table | None:
    """The participant's data, if it fits the study: that is seen before anything is sent."""
    if not source:
        return None
    table = read_table(source)
    _, labels = encode(offer.manifest, table)
    if offer.manifest.study.protocol == "ddml" and not len(labels):
        raise UsageError(
            "USAGE-001", f"{shown(source)} has no rows, and so nothing to improve the model by.", fix="Give a table with rows."
        )
    return table


def _needed(table: Table | None) -> Table:
    if table is None:
        raise UsageError("USAGE-001", "There is no data to answer from.", fix="--data rows.csv")
    return table


async def _preview(options: Options, session: Session, offer: Offer, asked: Asked, table: Table | None) -> None:
    session.refuse_if_changed(offer)
    session.refuse_if_too_much(asked, options.max_epsilon)
    drawn = await session.preview(offer, _needed(table), asked.source)
    study = offer.manifest.study
    text = f"{_label(options, session, offer, asked)}\n{_drawn(options, session, offer, drawn)}"
    way = {"via": session.client.via.name, "rests_on_relay": _rests_on_relay(options, session, offer)}
    data = {"study": offer.digest, "title": study.title, **way, **label_data(asked), "drawn": drawn_data(drawn)}
    emit(data, text, json=options.json, next_command=_again(options))


async def _agree(options: Options, session: Session, offer: Offer, asked: Asked, table: Table) -> None:
    """Have the participant agree, or end with an error; nothing is sent or spent before."""
    if options.can_ask and not options.yes:
        await _ask(session, offer, table, asked, options)
        return
    if not options.json:
        print(_label(options, session, offer, asked))
    if options.yes:
        session.refuse_if_not_named(offer, options.study)
    session.refuse_if_too_much(asked, options.max_epsilon)
    if not options.yes:
        raise ConsentError(
            "CONSENT-001",
            f"Nobody has agreed to the study {shown(asked.statement.title)}, and there is no terminal to ask at.",
            why="Without a terminal nothing is asked.",
            fix=f"Read its label; if you agree: --study {offer.digest[:12]} --yes --max-epsilon {show(asked.price)}",
        )


async def _ask(session: Session, offer: Offer, table: Table, asked: Asked, options: Options) -> None:
    async def preview() -> str:
        if options.review:
            return "The bytes of a study that has changed can be shown once you have left its first form, by shoal leave."
        session.refuse_if_too_much(asked, options.max_epsilon)
        drawn = await session.preview(offer, table, asked.source)
        return _drawn(options, session, offer, drawn)

    if not await converse(_label(options, session, offer, asked), details_text(asked, offer.url, offer.key), preview):
        fix = f"What is held for a preview is given up by: {_give_up(options, offer)}"
        raise ConsentError("CONSENT-001", "You have not agreed. Nothing was sent.", fix=fix)
    session.refuse_if_too_much(asked, options.max_epsilon)


def _label(options: Options, session: Session, offer: Offer, asked: Asked) -> str:
    return label_text(asked, session.client.via.words, rests_on_relay=_rests_on_relay(options, session, offer))


def _rests_on_relay(options: Options, session: Session, offer: Offer) -> bool:
    """Whether the relay alone says which coordinator this is: on a first visit through it, to a study that is not named by all its digits.

    A digest is that of one manifest, which has the gateway's key, and with another key nothing goes on.
    """
    return session.client.via.name == _RELAYED and options.via is not None and not (session.is_met(offer) or names_all(options.study))


def _drawn(options: Options, session: Session, offer: Offer, drawn: Sequence[Drawn]) -> str:
    nothing = session.nothing_to_show(offer) or NOTHING_DRAWN[offer.manifest.study.protocol]
    return drawn_text(drawn, nothing, _give_up(options, offer))


def _report(
    options: Options, session: Session, offer: Offer, asked: Asked, finished: Finished, kept: Path | None, *, rests_on_relay: bool
) -> None:
    """Say what came of it; a study that was given up has an exit code of its own."""
    entries = [entry for entry in session.ledger.entries() if entry.study == offer.digest]
    totals, title, agreed = session.ledger.totals(), offer.manifest.study.title, session.journal.consents(offer.digest)
    lines = [
        f"study     {shown(title)}, digest {offer.manifest.short}",
        f"standing  {_STANDINGS.get(finished.standing, f'{finished.standing}: {finished.words}')}",
        *_reason(finished.reason),
        *(f"agreed    {at:%Y-%m-%d %H:%M} UTC, at {shown(url)}" for url, at in agreed),
        f"sent      {sent_text(entries)}",
        *([f"wrote     {'nothing: there is no model' if kept is None else shown(str(kept))}"] if options.out is not None else []),
        "",
        totals_text(totals),
    ]
    data = {
        "study": offer.digest,
        "title": title,
        "standing": finished.standing,
        "reason": finished.reason,
        "not_sent": finished.n_unsent,
        "via": session.client.via.name,
        "rests_on_relay": rests_on_relay,
        "agreed": [{"url": url, "time": at.isoformat()} for url, at in agreed],
        **label_data(asked),
        "sent": sent_data(entries),
        "ledger": {"path": str(session.ledger.path), "totals": [total_data(total) for total in totals]},
        "out": None if kept is None else str(kept),
    }
    emit(data, "\n".join(lines), json=options.json, next_command=_next(options, finished, kept))
    if finished.standing == "aborted":
        raise SystemExit(BudgetError.exit_code if (finished.reason or "").startswith("BUDGET") else 1)


_STANDINGS = {
    "over": "over: the study ended without asking for more",
    "aborted": "given up",
}


def _reason(reason: str | None) -> list[str]:
    """Why a study was given up: an error's lines, as they were printed when it happened."""
    first, *others = (reason or "").splitlines() or [""]
    return [f"reason    {' '.join(first.split())}", *(shown(line) for line in others)] if reason else []


def _next(options: Options, finished: Finished, kept: Path | None) -> str:
    if kept is not None and kept.is_dir():
        return f"shoal release check {shell_word(kept)}"
    if options.out is None and finished.standing != "aborted":
        return f"{_again(options)} --out results"
    return f"shoal ledger show{'' if options.ledger is None else f' --ledger {shell_word(options.ledger)}'}"


def _give_up(options: Options, offer: Offer) -> str:
    """The command that gives up what is held for a study."""
    return f"shoal leave {offer.digest[:12]}{options.places}"


def _again(options: Options) -> str:
    """The command with which to go on."""
    words = ["shoal join", shell_word(options.url)]
    words += [] if options.data is None else [f"--data {shell_word(options.data)}"]
    words += [] if options.study is None else [f"--study {shell_word(options.study)}"]
    words += [] if options.via is None else [f"--via {shell_word(options.via)}"]
    words += ["--read-only"] if options.read_only else []
    return " ".join(words) + options.places


def _epsilon(text: str | None) -> float | None:
    if text is None:
        return None
    with suppress(ValueError):
        epsilon = float(text)
        if math.isfinite(epsilon) and epsilon > 0:
            return epsilon
    raise UsageError("USAGE-001", f"--max-epsilon {text!a:.60} is not a price.", fix="Give a number above zero: --max-epsilon 1.5")
