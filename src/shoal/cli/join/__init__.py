"""``shoal join``: read the label of a study, agree, answer, wait and resume.

`shoal.cli.join.view` formats the output. Nothing is sent or spent before the participant has
agreed, and the participant's table is read and encoded once.
"""

from __future__ import annotations

import math
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.cli.arguments import make_source_name, read_table
from shoal.cli.join.view import (
    ask_for_consent,
    format_details,
    format_example,
    format_label,
    format_misfits,
    format_sent,
    format_sent_answers,
    make_answers_data,
    make_label_data,
    make_sent_data,
    show_progress,
)
from shoal.cli.ledger.paths import announce_ledger, check_date
from shoal.cli.ledger.view import format_totals, make_total_data
from shoal.cli.output import emit
from shoal.cli.runtime import run_async
from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy
from shoal.errors import BudgetError, ConsentError, SpecError, UsageError
from shoal.participant.consent import PricedOffer, refuse_price
from shoal.participant.journal import JOINED_STATUSES, JoinedStudy, Role
from shoal.participant.ledger_storage import find_ledger_path
from shoal.participant.network import NetworkPath, parse_via
from shoal.participant.offers import Offer, is_full_digest, normalize_digest
from shoal.participant.preview import ShownAnswer
from shoal.participant.runner import ParticipationResult, prepare_directory
from shoal.participant.session import ParticipantSession, open_session
from shoal.privacy.rounding import format_epsilon
from shoal.study.manifest import Manifest
from shoal.study.protocol import EncodedRows
from shoal.text import escape_text, format_utc, shell_quote

_OHTTP = "ohttp"


@dataclass(frozen=True)
class JoinOptions:
    """The options of the command line."""

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
    new_ledger: bool
    date: str | None
    json: bool

    @property
    def role(self) -> Role:
        """The role of the participant."""
        return "reader" if self.read_only else "sharer"

    @property
    def path_options(self) -> str:
        """The options for ledger and certificates, for a suggested command."""
        given = (("--ledger", self.ledger), ("--ca", self.ca))
        return "".join(
            f" {option} {shell_quote(path)}" for option, path in given if path is not None
        )

    def make_path(self, manifest: Manifest | None = None) -> NetworkPath:
        """Return the network path to the coordinator; a known manifest may name a relay."""
        return parse_via(self.via, self.url, SystemEntropy(), ca=self.ca, manifest=manifest)

    @property
    def can_ask(self) -> bool:
        """Whether there is a person to ask."""
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
    new_ledger: bool = False,
    date: str | None = None,
    json: bool = False,
) -> None:
    """Take part in a study: read its label, agree, answer and wait.

    Run the same command again to resume. Without a terminal nothing is asked: --yes and
    --max-epsilon are needed, also --study for a new study of a coordinator that you know, and
    --new-ledger for your first study.

    Parameters
    ----------
    url
        The coordinator's address.
    data
        Your table (.csv, .csv.gz, .parquet, .db#table). It is read on this computer and never sent.
        You need not give it again for a study that you have joined.
    study
        The digest of the study, or its beginning, if the coordinator has several. All 64 digits
        identify exactly this study.
    max_epsilon
        The most epsilon that everything you send may cost, as your ledger counts it. A study that
        costs more is refused.
    yes
        Agree without being asked, up to --max-epsilon.
    preview
        Show an example of what would be sent, and send nothing. The example is not stored. After
        you have agreed: show the bytes that were sent.
    via
        How to reach the coordinator: direct, ohttp:RELAY-URL, tor or tor:HOST:PORT. Default:
        through the study's relay, if it has one.
    ledger
        The ledger file. Default: SHOAL_LEDGER, or a file in your data directory.
    invitation
        The code that you were invited with.
    ca
        Certificates to trust instead of the system's, in PEM form.
    out
        A directory for the result: the release of a pfds study, or the model. The command waits for
        the model.
    read_only
        Share nothing, and read what the holders of a pfds study share.
    review
        Read a study that has changed since you agreed, and agree again or decline.
    new_ledger
        Start a new ledger if there is none. It does not know what you sent in earlier studies.
    date
        Today's date in UTC, such as 2030-01-31. It is needed without a terminal if the clock is
        more than 30 days ahead of the ledger's last record.
    json
        Print one JSON object.
    """
    if preview and read_only:
        raise UsageError(
            "USAGE-001",
            "--preview shows what would be sent; with --read-only nothing is sent.",
            fix="Leave out one of the two.",
        )
    if yes and max_epsilon is None:
        raise UsageError(
            "USAGE-001",
            "--yes needs the largest price that you agree to.",
            fix="Add a price: --yes --max-epsilon 1",
        )
    options = JoinOptions(
        url,
        data,
        study,
        _parse_max_epsilon(max_epsilon),
        yes,
        preview,
        via,
        ledger,
        invitation,
        ca,
        out,
        read_only,
        review,
        new_ledger,
        date,
        json,
    )
    if out is not None:
        prepare_directory(out)
    run_async(_run_join(options))


async def _run_join(options: JoinOptions) -> None:
    async with AsyncExitStack() as stack:
        path = announce_ledger(options.ledger or find_ledger_path(), new_ledger=options.new_ledger)
        session = await stack.enter_async_context(
            open_session(path, options.url, SystemClock(), SystemEntropy(), options.make_path())
        )
        session = await _reroute(stack, options, session, _find_known_manifest(options, session))
        offer = await session.fetch_offer(options.study, is_review=options.review)
        if options.via is None:
            session = await _reroute(stack, options, session, offer.manifest)
        session.refuse_role(offer, options.role)
        if options.role == "sharer":
            now = session.clock.now()
            check_date(session.ledger, now, options.date, can_ask=options.can_ask)
        if session.find_joined(offer) is None:
            await _check_path(options, session, offer)
        rests_on_relay = _rests_on_relay(options, session, offer)
        source = _choose_source(options, session.journal.find_study(offer.digest))
        rows, priced = _read_rows(offer, source), session.price_offer(offer, source)
        if options.role == "sharer" and session.find_joined(offer) is None:
            session.refuse_if_voided(offer)
        if options.preview:
            _show_preview(options, session, offer, priced, rows)
            return
        if session.find_joined(offer) is None:
            if not options.review:
                session.refuse_if_changed(offer)
            if options.role == "sharer":
                await _obtain_consent(options, session, offer, priced, _require_rows(rows))
            await _check_relay(options, session, offer)
            session.agree(
                offer,
                source,
                role=options.role,
                invitation=options.invitation,
                is_reviewed=options.review,
            )
        else:
            _resume(options, session, offer, priced)
        print(_describe_duration(offer.manifest), file=sys.stderr, flush=True)
        with show_progress(offer.manifest.study.title) as on_progress:
            result = await session.take_part(offer, rows, on_progress, options.role)
            written_path = None
            if options.out is not None and result.status != "aborted":
                written_path = await session.write_result(offer, result, options.out, on_progress)
        _report_result(
            options, session, offer, priced, result, written_path, rests_on_relay=rests_on_relay
        )


async def _check_path(options: JoinOptions, session: ParticipantSession, offer: Offer) -> None:
    """Raise if the study does not accept answers over the network path, before consent.

    Only a relay that the participant has named is asked. A manifest may name any address as a
    relay; `_check_relay` asks that one after consent.
    """
    path = session.client.network_path
    if options.via is None:
        path.check_allowed(offer.manifest)
    else:
        await path.check(offer.study)


async def _check_relay(options: JoinOptions, session: ParticipantSession, offer: Offer) -> None:
    """Ask the relay that the manifest names whether it serves the study, after consent."""
    path = session.client.network_path
    if options.via is None and path.name == _OHTTP:
        await path.check(offer.study)
        print(f"Connected {path.description}.", file=sys.stderr, flush=True)


def _describe_duration(manifest: Manifest) -> str:
    """Return how long the command may run, for a person who waits."""
    closes = manifest.study.participation.closes
    until = (
        "until the study ends"
        if closes is None
        else f"until the study ends, {format_utc(closes)} at the latest"
    )
    return f"Taking part {until}. Press Ctrl-C to stop; run the same command again to resume."


def _find_known_manifest(options: JoinOptions, session: ParticipantSession) -> Manifest | None:
    """Return the manifest of the study, if the journal has exactly one that matches.

    With it, the first request for the manifest already uses the study's relay. The participant has
    agreed to the study, and so to its relay.
    """
    digits = normalize_digest(options.study)
    found = [
        one
        for one in session.journal.list_studies()
        if one.url == session.client.url
        and one.study.startswith(digits)
        and one.standing in JOINED_STATUSES
    ]
    # This version of shoal may not read the manifest of an earlier one; then it is fetched again.
    with suppress(SpecError):
        return Manifest.from_bytes(found[0].manifest) if len(found) == 1 else None
    return None


async def _reroute(
    stack: AsyncExitStack,
    options: JoinOptions,
    session: ParticipantSession,
    manifest: Manifest | None,
) -> ParticipantSession:
    """Return the session over the network path of a study.

    Without ``--via`` this is the relay that the manifest names. With ``--via ohttp`` the gateway
    key comes from a known manifest, so that the relay need not be trusted for it.
    """
    if manifest is None:
        return session
    path = options.make_path(manifest)
    if path.name == session.client.network_path.name != _OHTTP:
        return session
    return replace(
        session, client=await stack.enter_async_context(session.client.open_through(path))
    )


def _resume(
    options: JoinOptions, session: ParticipantSession, offer: Offer, priced_offer: PricedOffer
) -> None:
    """Check the price limit of a study that was agreed to, and record a new invitation."""
    if options.role == "sharer":
        refuse_price(priced_offer, options.max_epsilon)
    if options.invitation is not None:
        session.journal.record_invitation(offer.digest, options.invitation)


def _choose_source(options: JoinOptions, joined: JoinedStudy | None) -> str:
    """Return the name of the data: that of ``--data``, or the one that the study began with."""
    given = "" if options.data is None else make_source_name(options.data)
    if joined is None:
        return given
    if options.data is not None and given != joined.source:
        raise UsageError(
            "USAGE-001",
            f"You joined this study with {escape_text(joined.source)}, not with "
            f"{escape_text(given)}.",
            why="A study is answered from one table. Answers from two tables would cost twice.",
            fix="Leave out --data.",
        )
    return joined.source


def _read_rows(offer: Offer, source: str) -> EncodedRows | None:
    """Read and encode the participant's data; raise if it does not fit the study.

    The rows are encoded here only, before anything is sent. Values that were changed and rows that
    were left out are counted on standard error, for the owner of the data.
    """
    if not source:
        return None
    fitted = offer.study.fit_rows(read_table(source))
    for line in format_misfits(fitted):
        print(line, file=sys.stderr, flush=True)
    columns, labels = fitted.columns, fitted.labels
    if offer.study.protocol.has_updates and not len(labels):
        raise UsageError(
            "USAGE-001",
            f"{escape_text(source)} has no rows that can be used, so there is nothing to send.",
            fix="Give a table with rows: --data FILE",
        )
    return columns, labels


def _require_rows(rows: EncodedRows | None) -> EncodedRows:
    if rows is None:
        raise UsageError(
            "USAGE-001", "There is no data to answer from.", fix="Give a table: --data rows.csv"
        )
    return rows


def _show_preview(
    options: JoinOptions,
    session: ParticipantSession,
    offer: Offer,
    priced_offer: PricedOffer,
    rows: EncodedRows | None,
) -> None:
    """Show an example before consent, and after it the answers that have arrived."""
    session.refuse_if_changed(offer)
    session.refuse_other_coordinator(offer)
    if session.find_joined(offer) is None:
        answers, n_waiting = session.draw_example(offer, _require_rows(rows)), 0
        text = _format_example(offer, answers)
        shown = {"example": make_answers_data(answers)}
    else:
        answers, n_waiting = session.list_sent_answers(offer)
        text = format_sent_answers(answers, n_waiting)
        shown = {"answers": make_answers_data(answers)}
    label = _format_offer_label(options, session, offer, priced_offer)
    data = {
        "study": offer.digest,
        "title": offer.manifest.study.title,
        "via": session.client.network_path.name,
        "rests_on_relay": _rests_on_relay(options, session, offer),
        **make_label_data(priced_offer),
        **shown,
        "waiting": n_waiting,
    }
    emit(data, f"{label}\n{text}", json=options.json, next_command=_make_join_command(options))


async def _obtain_consent(
    options: JoinOptions,
    session: ParticipantSession,
    offer: Offer,
    priced_offer: PricedOffer,
    rows: EncodedRows,
) -> None:
    """Ask for consent, or raise if there is none. Nothing is sent or spent before it."""
    if options.can_ask and not options.yes:
        await _ask_person(session, offer, rows, priced_offer, options)
        return
    if not options.json:
        print(_format_offer_label(options, session, offer, priced_offer))
    if options.yes:
        session.refuse_if_not_named(offer, options.study)
    session.refuse_if_over_limits(priced_offer, options.max_epsilon)
    if not options.yes:
        raise ConsentError(
            "CONSENT-001",
            f"You have not agreed to the study {escape_text(priced_offer.statement.title)}, and "
            "there is no terminal to ask you.",
            fix=f"Read the label. If you agree: --study {offer.digest[:12]} --yes --max-epsilon "
            f"{format_epsilon(priced_offer.price)}",
        )


async def _ask_person(
    session: ParticipantSession,
    offer: Offer,
    rows: EncodedRows,
    priced_offer: PricedOffer,
    options: JoinOptions,
) -> None:
    if not await ask_for_consent(
        _format_offer_label(options, session, offer, priced_offer),
        format_details(priced_offer, offer.url, offer.key),
        lambda: _format_example(offer, session.draw_example(offer, rows)),
    ):
        raise ConsentError("CONSENT-001", "You have not agreed. Nothing was sent.")
    session.refuse_if_over_limits(priced_offer, options.max_epsilon)


def _format_offer_label(
    options: JoinOptions, session: ParticipantSession, offer: Offer, priced_offer: PricedOffer
) -> str:
    return format_label(
        priced_offer,
        session.client.network_path.description,
        rests_on_relay=_rests_on_relay(options, session, offer),
    )


def _rests_on_relay(options: JoinOptions, session: ParticipantSession, offer: Offer) -> bool:
    """Return whether the relay alone vouches for the coordinator.

    This is so at the first contact through a relay, if the study is not named by its whole digest.
    A digest identifies one manifest, which contains the gateway key; with another key nothing is
    sent.
    """
    return (
        session.client.network_path.name == _OHTTP
        and options.via is not None
        and not (session.is_known_coordinator(offer) or is_full_digest(options.study))
    )


def _format_example(offer: Offer, answers: tuple[ShownAnswer, ...]) -> str:
    protocol = offer.study.protocol
    return format_example(answers, protocol.no_preview_reason, protocol.example_note)


def _report_result(
    options: JoinOptions,
    session: ParticipantSession,
    offer: Offer,
    priced_offer: PricedOffer,
    result: ParticipationResult,
    written_path: Path | None,
    *,
    rests_on_relay: bool,
) -> None:
    """Print how taking part ended; exit with another code if the study was given up."""
    entries = [entry for entry in session.ledger.entries() if entry.study == offer.digest]
    totals, title, agreed = (
        session.ledger.totals(),
        offer.manifest.study.title,
        session.journal.list_consents(offer.digest),
    )
    lines = [
        f"study     {escape_text(title)}, digest {offer.manifest.short_digest}",
        f"status    {_STATUS_TEXTS.get(result.status, f'{result.status}: {result.description}')}",
        *_format_reason(result.reason),
        *(f"agreed    {at:%Y-%m-%d %H:%M} UTC, at {escape_text(url)}" for url, at in agreed),
        f"sent      {format_sent(entries)}",
        *([] if options.out is None else [f"wrote     {_describe_written(written_path)}"]),
        "",
        format_totals(totals),
    ]
    data = {
        "study": offer.digest,
        "title": title,
        "standing": result.status,
        "reason": result.reason,
        "not_sent": result.n_unsent,
        "via": session.client.network_path.name,
        "rests_on_relay": rests_on_relay,
        "agreed": [{"url": url, "time": at.isoformat()} for url, at in agreed],
        **make_label_data(priced_offer),
        "sent": make_sent_data(entries),
        "ledger": {
            "path": str(session.ledger.path),
            "totals": [make_total_data(total) for total in totals],
        },
        "out": None if written_path is None else str(written_path),
    }
    emit(
        data,
        "\n".join(lines),
        json=options.json,
        next_command=_suggest_next(options, result, written_path),
    )
    if result.status == "aborted":
        raise SystemExit(BudgetError.exit_code if (result.reason or "").startswith("BUDGET") else 1)


_STATUS_TEXTS = {
    "over": "over: the study ended and needs no more answers from you",
    "aborted": "given up",
}


def _describe_written(path: Path | None) -> str:
    return "nothing: there is no model" if path is None else escape_text(str(path))


def _format_reason(reason: str | None) -> list[str]:
    """Return the lines of the error for which a study was given up."""
    first, *others = (reason or "").splitlines() or [""]
    return (
        [f"reason    {' '.join(first.split())}", *(escape_text(line) for line in others)]
        if reason
        else []
    )


def _suggest_next(
    options: JoinOptions, result: ParticipationResult, written_path: Path | None
) -> str:
    if written_path is not None and written_path.is_dir():
        return f"shoal release check {shell_quote(written_path)}"
    if options.out is None and result.status != "aborted":
        return f"{_make_join_command(options)} --out results"
    ledger = "" if options.ledger is None else f" --ledger {shell_quote(options.ledger)}"
    return f"shoal ledger show{ledger}"


def _make_join_command(options: JoinOptions) -> str:
    """Return the command that resumes."""
    words = ["shoal join", shell_quote(options.url)]
    words += [] if options.data is None else [f"--data {shell_quote(options.data)}"]
    words += [] if options.study is None else [f"--study {shell_quote(options.study)}"]
    words += [] if options.via is None else [f"--via {shell_quote(options.via)}"]
    words += ["--read-only"] if options.read_only else []
    return " ".join(words) + options.path_options


def _parse_max_epsilon(text: str | None) -> float | None:
    if text is None:
        return None
    with suppress(ValueError):
        epsilon = float(text)
        if math.isfinite(epsilon) and epsilon > 0:
            return epsilon
    raise UsageError(
        "USAGE-001",
        f"--max-epsilon {text!a:.60} is not a number above zero.",
        fix="Give a price: --max-epsilon 1.5",
    )
