"""One-page study statement; data retention.

Ethics boards and data protection officers read and sign the page. The coordinator serves it for
each study, and ``shoal statement`` writes it for a study file. It must not say more or less than
the label that participants read. What it says about stored data must agree with
``docs/theory/threats.md``, and ``tests/e2e/test_traces.py`` measures it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shoal import __version__
from shoal.report.formatting import get_protocol_colour
from shoal.report.html import Content, Markup, join, make_bullets, make_paragraph, tag
from shoal.report.page import make_document
from shoal.study.delivery import (
    explain_draft_digest,
    is_anonymous,
    make_draft_statement,
    make_offer_statement,
)
from shoal.study.label import Statement
from shoal.study.manifest import Manifest
from shoal.study.registry import get_protocol
from shoal.study.spec import Study
from shoal.text import clean_text, format_utc


def list_trusted_parties(study: Study, statement: Statement) -> Iterator[str]:
    """Yield each party to trust, for privacy and for the result."""
    if get_protocol(study).holders.are_organisations:
        yield "each organisation, with the rows that it already holds"
    if study.trust == "local":
        yield (
            "for privacy: no one else, because all data that leaves a participant is already "
            "private"
        )
    elif study.trust == "shuffled":
        share = 100 * (study.participation.honest_share or 1.0)
        yield (
            "for the local epsilon: no one, because all data that leaves a participant is already "
            "private"
        )
        yield (
            "for the epsilon after shuffling: an independent relay, which shuffles and does not "
            f"reveal the order, and {share:.3g} % honest people"
        )
    else:
        # The last assumption is about members that drop out, not about trust.
        yield from statement.rests_on[:-1]
    yield (
        "for a correct result: participants, to answer truthfully, and the coordinator, to "
        "compute with the answers that it received"
    )
    yield "always: the participant's own computer, and its copy of this software"


def list_retention(manifest: Manifest) -> Iterator[str]:
    """Yield what a coordinator with this software stores, and for how long."""
    study = manifest.study
    yield get_protocol(study).retention
    if is_anonymous(study):
        yield (
            "registered keys, which were made for this study, and the credentials issued to them: "
            "permanently; digests of tickets: until the study ends"
        )
        yield (
            "identifiers of packets, which do not identify people: permanently; digests of their "
            "content: until the study ends"
        )
    else:
        yield "the SHA-256 digest of each enrolled key: permanently"
    yield "no log of requests: no sender, address, time or user agent"
    yield (
        "the study, its totals and its result: permanently; logs and backups of PostgreSQL or "
        "Redis contain more (shoal: docs/theory/threats.md)"
    )
    yield (
        "on the participant's own computer: a ledger of the privacy budget spent, and the bytes "
        "sent"
    )


_SIGNATORIES = ("For the study", "Data protection", "Ethics board")
_DENSITIES = (("roomy", 98, 44), ("close", 108, 49), ("closer", 120, 56))
"""Font sizes: CSS class, characters on a line, lines on a page."""


def make_statement_page(manifest: Manifest, label: Statement | None = None) -> str:
    """Return the statement of a served study as one A4 page of HTML.

    The manifest is that of the study as served, so that the signed digest is the one that
    participants agree to. Give its label if it has been made already.
    """
    digest_note = (
        ". All text above follows from the study with this digest, to which participants "
        "agree. Any change of the study changes the digest."
    )
    return _make_page(manifest, label or make_offer_statement(manifest), digest_note)


def make_draft_page(draft: Manifest, *, tickets: bool = False) -> str:
    """Return the page of a study that is not served yet, as participants will read it.

    Parameters
    ----------
    draft
        The study without keys and addresses.
    tickets
        True if tickets instead of tokens will admit anonymous packets.
    """
    remark = explain_draft_digest(draft, uses_tickets=tickets)
    digest_note = (
        ". All text above follows from the study file with this digest. Any change of the file "
        "changes the digest."
    )
    if remark is not None:
        digest_note = (
            f", a digest {remark}. This page describes the study file alone, and its digest is "
            "not that of the served study. To sign the study exactly as served, print "
            "/studies/DIGEST/statement at its coordinator."
        )
    return _make_page(draft, make_draft_statement(draft, uses_tickets=tickets), digest_note)


def _make_page(manifest: Manifest, label: Statement, digest_note: str) -> str:
    rows = [
        (head, content if isinstance(content, str) else list(content))
        for head, content in _list_rows(manifest, label)
    ]
    texts = [
        text for _, content in rows for text in ([content] if isinstance(content, str) else content)
    ]
    density = next(
        (
            name
            for name, letters, lines in _DENSITIES
            if sum(-(-len(text) // letters) for text in texts) <= lines
        ),
        "closest",
    )
    study = manifest.study
    head = tag(
        "header",
        tag("p", "Privacy statement of a study", class_="brand"),
        tag("h1", clean_text(study.title), dir="auto"),
        make_paragraph(
            f"{get_protocol(study).title}, variant {study.variant}, trust {study.trust}",
            class_="kind",
        ),
        style=f"--accent: {get_protocol_colour(study.protocol)}",
    )
    body = [
        tag(
            "main",
            head,
            tag("dl", [_make_term(name, content) for name, content in rows]),
            _make_signatures(),
            _make_footer(manifest, digest_note),
            class_=density,
            id="main",
        ),
    ]
    return make_document(f"Statement: {clean_text(study.title)}", "statement.css", body)


def _make_term(name: str, content: str | list[str]) -> Markup:
    body: Content = (
        content
        if isinstance(content, str)
        else content[0]
        if len(content) == 1
        else make_bullets(content)
    )
    return join([tag("dt", name), tag("dd", body, dir="auto")])


def _list_rows(manifest: Manifest, label: Statement) -> Iterator[tuple[str, str | Iterable[str]]]:
    study, rows = manifest.study, dict(label.rows())
    features = [clean_text(feature.name) for feature in study.feature]
    listed = ", ".join(features[:24]) + (
        f" and {len(features) - 24} more" if len(features) > 24 else ""
    )
    yield "Purpose", label.purpose
    yield "Participants", get_protocol(study).describe_participants(study)
    yield "Task", f"to predict {clean_text(study.label.name)} from {listed}"
    yield "What leaves", rows["You send"]
    yield "Who sees it", label.seen_by
    yield "What is protected", rows["Protects"]
    yield "Guarantee", rows["Guarantee"]
    yield "What that means", [*rows["Risk"], *rows.get("Shuffled", ())]
    yield "Who is trusted", list_trusted_parties(study, label)
    yield "What is stored", list_retention(manifest)
    yield "Not covered", label.not_covered
    yield "Leaving", label.undo
    yield (
        "Contact",
        label.contact
        + ("" if label.closes is None else f"; the study closes {format_utc(label.closes)}"),
    )


def _make_signatures() -> Markup:
    def line(role: str) -> Markup:
        return tag(
            "div",
            tag("span", role, class_="role"),
            tag("span", "Name, date, signature", class_="line"),
        )

    return tag("div", map(line, _SIGNATORIES), class_="signatures")


def _make_footer(manifest: Manifest, digest_note: str) -> Markup:
    digest = tag("code", manifest.digest.hex())
    return tag("footer", make_paragraph("Study ", digest, f"{digest_note} shoal {__version__}."))
