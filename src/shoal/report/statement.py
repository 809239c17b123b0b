"""A study on one page, for an ethics board or a data-protection officer to sign."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shoal import __version__
from shoal.report.colours import colour_of
from shoal.report.layout import bullets, paragraph
from shoal.report.markup import Content, Markup, join, tag
from shoal.report.page import document
from shoal.report.retention import retention, trusted, who
from shoal.report.views import TITLES
from shoal.study.label import Statement
from shoal.study.manifest import Manifest
from shoal.study.typeset import clean, moment
from shoal.study.wording_tokens import remark_on_digest, statement_of, statement_of_draft

_SIGNED_BY = ("For the study", "Data protection", "Ethics board")
_DENSITIES = (("roomy", 98, 44), ("close", 108, 49), ("closer", 120, 56))
"""How large letters may be: so many fit on a line, and so many lines on a page."""


def statement_page(manifest: Manifest) -> str:
    """One page that prints on A4: what, who, for what, what leaves, what protects, who is trusted, what is kept, what is not covered.

    Parameters
    ----------
    manifest
        Of the study as it is served: what is signed then has the digest that participants agree to.
    """
    told = ". Every word above follows from the study with this digest, to which participants agree; a change of the study changes it."
    return _page(manifest, statement_of(manifest), told)


def draft_page(draft: Manifest, *, tickets: bool = False) -> str:
    """The same page of a study that is not served yet, as participants will read it.

    Parameters
    ----------
    draft
        The study without keys and addresses.
    tickets
        Whether anonymous packets will be admitted by tickets, and not by tokens.
    """
    remark = remark_on_digest(draft, tickets=tickets)
    told = ". Every word above follows from the study file with this digest; a change of the file changes it."
    if remark is not None:
        served = "To sign for exactly what is served, print /studies/DIGEST/statement at its coordinator."
        told = f", a digest {remark}. This page is of the study file alone, and names no digest that is served. {served}"
    return _page(draft, statement_of_draft(draft, tickets=tickets), told)


def _page(manifest: Manifest, label: Statement, told: str) -> str:
    rows = [(head, content if isinstance(content, str) else list(content)) for head, content in _rows(manifest, label)]
    texts = [text for _, content in rows for text in ([content] if isinstance(content, str) else content)]
    density = next((name for name, letters, lines in _DENSITIES if sum(-(-len(text) // letters) for text in texts) <= lines), "closest")
    study = manifest.study
    head = tag(
        "header",
        tag("p", "Privacy statement of a study", class_="brand"),
        tag("h1", clean(study.title), dir="auto"),
        paragraph(f"{TITLES[study.protocol]}, variant {study.variant}, trust {study.trust}", class_="kind"),
        style=f"--accent: {colour_of(study.protocol)}",
    )
    body = [
        tag(
            "main",
            head,
            tag("dl", [_term(name, content) for name, content in rows]),
            _signatures(),
            _foot(manifest, told),
            class_=density,
            id="main",
        ),
    ]
    return document(f"Statement: {clean(study.title)}", "statement.css", body)


def _term(name: str, content: str | list[str]) -> Markup:
    said: Content = content if isinstance(content, str) else content[0] if len(content) == 1 else bullets(content)
    return join([tag("dt", name), tag("dd", said, dir="auto")])


def _rows(manifest: Manifest, label: Statement) -> Iterator[tuple[str, str | Iterable[str]]]:
    study, said = manifest.study, dict(label.rows())
    features = [clean(feature.name) for feature in study.feature]
    listed = ", ".join(features[:24]) + (f" and {len(features) - 24} more" if len(features) > 24 else "")
    yield "Purpose", label.purpose
    yield "Who takes part", who(study)
    yield "What is asked", f"to predict {clean(study.label.name)} from {listed}"
    yield "What leaves", said["Leaves here"]
    yield "Who sees it", label.seen_by
    yield "What is protected", said["Protects"]
    yield "Guarantee", said["Guarantee"]
    yield "What that means", [*said["In words"], *said.get("In a crowd", ())]
    yield "Who is trusted", trusted(study, label)
    yield "What is kept", retention(manifest)
    yield "Not covered", label.not_covered
    yield "Leaving", label.undo
    yield "Contact", label.contact + ("" if label.closes is None else f"; the study closes {moment(label.closes)}")


def _signatures() -> Markup:
    def line(role: str) -> Markup:
        return tag("div", tag("span", role, class_="role"), tag("span", "Name, date, signature", class_="line"))

    return tag("div", map(line, _SIGNED_BY), class_="signatures")


def _foot(manifest: Manifest, told: str) -> Markup:
    digest = tag("code", manifest.digest.hex())
    return tag("footer", paragraph("Study ", digest, f"{told} shoal {__version__}."))
