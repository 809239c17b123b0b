"""What an analyst does in a browser: publish a study, and end one. The key is a field of the form, and there is no cookie: a page of
another origin that sends a form has no key to put into it, and is refused: the form would come back filled in, for the analyst to add it.

Whoever has no key can send forms too, as often as they like: little is done with them, and what is long does not come back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from shoal.coordinator.office import Office, Served
from shoal.coordinator.pages_answers import html, told
from shoal.errors import RemoteProtocolError, ShoalError, SpecError, UsageError
from shoal.study.anonymity import is_anonymous
from shoal.study.load import MAX_BYTES, parse
from shoal.study.manifest import Manifest
from shoal.study.rosters import parse_roster
from shoal.study.typeset import clean
from shoal.study.unfinished import FIX, drafts_in
from shoal.transport.forms import Issuing
from shoal.transport.problems import RequestError
from shoal.transport.reading import PATIENCES, body_of, digest_of, query_of
from shoal.web import views
from shoal.web.forms import fields_of

MOST_FORM_BYTES = 3 * MAX_BYTES
_KEY_FORM_BYTES = 1 << 12
_MOST_KEY = 200
"""Letters, however the key is grouped."""

_MOST_SHOWN_AGAIN = 1 << 16
"""Letters of a field that come back to one who has no key."""

_OWN_PAGES = ("same-origin", "none")


@dataclass(frozen=True, slots=True)
class Wish:
    """A study as an analyst sends it by the form.

    Parameters
    ----------
    study, roster
        Texts in TOML; the roster may be empty.
    relay, epoch
        As in the manifest; None for none.
    has_tokens
        Whether anonymous packets are admitted by tokens, and not by tickets.
    patience
        Milliseconds; None for what follows from the study.
    """

    study: str
    roster: str
    relay: str | None
    epoch: str | None
    has_tokens: bool
    patience: int | None


async def publish_form(office: Office, request: Request) -> Response:  # noqa: ARG001
    query_of(request)
    return html(views.publish_page())


async def publish_study(office: Office, request: Request) -> Response:
    """Publish what the form has; where that cannot be, the form comes back with the reason, and without the key."""
    fields = await _fields(request, MOST_FORM_BYTES)
    given = {name: fields.get(name, b"").decode("utf-8", "replace") for name in views.PUBLISH_FIELDS}
    try:
        _check_key(office, fields)
    except RemoteProtocolError as error:
        short = {name: text if len(text) <= _MOST_SHOWN_AGAIN else "" for name, text in given.items()}
        return _again(error, lambda words: views.publish_page(short, words))
    try:
        wish = _wish(given, fields.get("study_file", b""))
        draft = await run_in_threadpool(_draft, wish)
        keys = await office.issuing() if wish.has_tokens and is_anonymous(draft.study) else None
        manifest = _with_keys(draft, wish, keys)
        hosted = await office.publish(manifest.to_bytes(), patience=wish.patience)
    except ShoalError as error:
        return _again(error, lambda words: views.publish_page(given, words))
    return _see(f"/studies/{hosted.digest}")


async def close_form(office: Office, request: Request) -> Response:
    query_of(request)
    return html(_close_page(await office.study(digest_of(request))))


async def close_study(office: Office, request: Request) -> Response:
    """End a study as its analyst; one that has ended stays as it is."""
    served = await office.study(digest_of(request))
    fields = await _fields(request, _KEY_FORM_BYTES)
    try:
        _check_key(office, fields)
    except RemoteProtocolError as error:
        return _again(error, lambda words: _close_page(served, words))
    await office.close_study(served.hosted.digest)
    return _see(f"/studies/{served.hosted.digest}")


async def _fields(request: Request, limit: int) -> dict[str, bytes]:
    query_of(request)
    # Browsers say it, and programs that do not are no danger to the one who runs them.
    if request.headers.get("sec-fetch-site", "none") not in _OWN_PAGES:
        raise RequestError(403, "HOST-006", "The form was sent by a page of another origin.", fix="Open the form here, and fill it in.")
    kind = request.headers.get("content-type", "")
    return fields_of(kind, await body_of(request, limit))


def _check_key(office: Office, fields: Mapping[str, bytes]) -> None:
    """Refuse whoever does not give the analyst's key, before anything else that was sent is looked at."""
    key = fields.get("key", b"").decode("utf-8", "replace").strip()
    if not key:
        raise RemoteProtocolError("AUTH-001", "Only the analyst may do this.", fix="Give the analyst's key.")
    if len(key) > _MOST_KEY or not office.is_analyst(key):
        fix = "Give the key that shoal serve has printed when it first used this coordinator's store."
        raise RemoteProtocolError("AUTH-002", "This is not the analyst's key.", fix=fix)


def _wish(given: Mapping[str, str], file: bytes) -> Wish:
    if len(file) > MAX_BYTES or len(given["study"]) > MAX_BYTES:
        fix = "A study file holds no data; keep rows in a file of their own."
        raise SpecError("SPEC-001", f"The study is larger than {MAX_BYTES:,} bytes.", fix=fix)
    try:
        study = file.decode("utf-8-sig") if file else given["study"]
    except UnicodeDecodeError as error:
        line = file.count(b"\n", 0, error.start) + 1
        what = f"study.toml:{line}  The study file is not UTF-8 text."
        raise SpecError("SPEC-001", what, fix="Save it as UTF-8 in an editor.") from None
    if not study.strip():
        raise SpecError("SPEC-001", "There is no study in the form.", fix="Choose a file, or paste its text.")
    patience = given["patience"].strip()
    if patience and not (patience.isascii() and patience.isdigit() and len(patience) < 12 and int(patience) in PATIENCES):
        raise SpecError(
            "HOST-003", f"{patience!a:.30} is not a number of seconds that a phase can wait.", fix="Give 1 to a year, or nothing."
        )
    relay, epoch = given["relay"].strip() or None, given["epoch"].strip() or None
    return Wish(study, given["roster"].strip(), relay, epoch, not given["tickets"], 1000 * int(patience) if patience else None)


def _draft(wish: Wish) -> Manifest:
    study = parse(wish.study)
    left = drafts_in(wish.study)
    if left:
        raise SpecError("SERVE-005", f"The study is a draft still. {' '.join(left)}", fix=FIX)
    roster = parse_roster(wish.roster) if wish.roster else ()
    if roster and study.protocol not in ("sdq", "pfds"):
        raise SpecError("SERVE-004", "A roster is given, and the study is not of sdq or pfds.", fix="Leave the roster out.")
    return Manifest(study, roster=roster)


def _with_keys(draft: Manifest, wish: Wish, keys: Issuing | None) -> Manifest:
    """The manifest with this coordinator's keys, where packets are admitted by tokens; a relay and an epoch mean nothing elsewhere."""
    if keys is None:
        for what, value in (("relay", wish.relay), ("epoch", wish.epoch)):
            if value is not None:
                why = "Its packets are not anonymous, or are admitted by tickets."
                raise SpecError("HOST-003", f"The {what} means nothing to this study.", why=why, fix="Leave it out.")
        return draft
    issuer_key, gateway_key = bytes.fromhex(keys.issuer_key), bytes.fromhex(keys.gateway_key)
    return replace(draft, issuer_key=issuer_key, gateway_key=gateway_key, relay=wish.relay, epoch=wish.epoch)


def _close_page(served: Served, problem: Mapping[str, str | None] | None = None) -> str:
    hosted, manifest = served.hosted, served.manifest
    return views.close_page(hosted.digest, manifest.short, clean(manifest.study.title), hosted.status, problem)


def _again(error: ShoalError, page: Callable[[Mapping[str, str | None]], str]) -> Response:
    """The form once more, with what is wrong. A command line's usage errors are the form's."""
    if isinstance(error, UsageError):
        error = SpecError(error.code, error.what, why=error.why, fix=error.fix)
    status, headers, words = told(error)
    return html(page(words), status, headers=headers)


def _see(where: str) -> Response:
    """A page to be shown next, so that loading it again sends no form."""
    return Response(status_code=303, headers={"location": where, "referrer-policy": "no-referrer"})
