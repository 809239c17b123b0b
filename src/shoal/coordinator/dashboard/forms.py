"""Publish and close forms.

The pages ``/publish`` and ``/studies/DIGEST/close`` call it. The analyst's key is a field of the
form, and there are no cookies: a page of another origin has no key to send. If it sends a form
nevertheless, the form is rejected and not returned for the analyst to add the key.

Anyone can send forms without a key, any number of times. The key is therefore checked first, and
long fields are not returned.

`parse_fields` reads forms strictly: input that no browser sends is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from shoal.coordinator.dashboard.responses import describe_error, html_response
from shoal.coordinator.service import CoordinatorService
from shoal.coordinator.studies import StudyView
from shoal.errors import RemoteProtocolError, ShoalError, SpecError, UsageError
from shoal.study.attachments import parse_roster
from shoal.study.delivery import is_anonymous
from shoal.study.loader import MAX_STUDY_BYTES, parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.registry import PROTOCOLS, get_protocol
from shoal.study.starters.drafts import DRAFT_FIX, find_unfinished_in_text
from shoal.text import clean_text
from shoal.transport.api import Issuing
from shoal.transport.requests import (
    PHASE_TIMEOUTS,
    RequestError,
    read_body,
    read_digest,
    read_query,
)
from shoal.web import study_pages

MAX_FIELDS = 16
MAX_PAIRS_BYTES = 1 << 16
"""Limit for a form without files: its fields take long to decode. Files and long texts are sent as
multipart.
"""

_MAX_HEAD_BYTES = 1 << 12
"""Limit for the headers of a part."""

URLENCODED, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"

_BOUNDARY = re.compile(r"""boundary=(?:"([^"\r\n]{1,70})"|([^\s;,"]{1,70}))\s*$""", re.IGNORECASE)
_NAME = re.compile(
    rb"""^(?i:content-disposition:[ \t]*form-data;[ \t]*name=)"([a-z_]{1,30})"(?:;|\r\n|$)""",
    re.MULTILINE,
)


def parse_fields(content_type: str, body: bytes) -> dict[str, bytes]:
    """Return the fields of a form by name, each once.

    Raises
    ------
    RemoteProtocolError
        ``HOST-006``: the body is not a form of these pages.

    Examples
    --------
    >>> parse_fields("application/x-www-form-urlencoded", b"key=7f3a&relay=")
    {'key': b'7f3a', 'relay': b''}
    """
    kind, _, parameters = content_type.partition(";")
    kind = kind.strip().lower()
    if kind == URLENCODED:
        pairs = _parse_pairs(body)
    elif kind == MULTIPART:
        pairs = _parse_parts(body, parameters)
    else:
        raise _unreadable_form_error("Its content type is not that of a form.")
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise _unreadable_form_error("A field occurs twice.")
    return fields


def _parse_pairs(body: bytes) -> list[tuple[str, bytes]]:
    if len(body) > MAX_PAIRS_BYTES:
        raise _unreadable_form_error(f"A form without files has at most {MAX_PAIRS_BYTES:,} bytes.")
    try:
        given = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MAX_FIELDS,
        )
    except ValueError:
        raise _unreadable_form_error(
            "Its fields are not encoded as a browser encodes them."
        ) from None
    return [(name, value.encode()) for name, value in given]


def _parse_parts(body: bytes, parameters: str) -> list[tuple[str, bytes]]:
    match = _BOUNDARY.search(parameters)
    if match is None:
        raise _unreadable_form_error("Its content type has no boundary.")
    fence = b"\r\n--" + (match[1] or match[2]).encode("latin-1", "replace")
    first, *parts = (b"\r\n" + body).split(fence, MAX_FIELDS + 1)
    if first or not parts or parts.pop().rstrip(b"\r\n") != b"--":
        raise _unreadable_form_error("It is incomplete or has too many fields.")
    return [_parse_part(part) for part in parts]


def _parse_part(part: bytes) -> tuple[str, bytes]:
    end = part.find(b"\r\n\r\n", 2, _MAX_HEAD_BYTES)
    name = _NAME.search(part[2 : max(2, end)])
    if not part.startswith(b"\r\n") or name is None:
        raise _unreadable_form_error("A field has no name.")
    return name[1].decode(), part[end + 4 :]


def _unreadable_form_error(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        "HOST-006", "The form cannot be read.", why=why, fix="Send it again from the page."
    )


MAX_FORM_BYTES = 3 * MAX_STUDY_BYTES
_KEY_FORM_BYTES = 1 << 12
_MAX_KEY = 200
"""Characters, including separators."""

_MAX_RETURNED = 1 << 16
"""Characters of a field that are returned to a sender without the key."""

_OWN_PAGES = ("same-origin", "none")


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """The content of the publish form.

    Parameters
    ----------
    study, roster
        TOML texts; the roster may be empty.
    relay, epoch
        As in the manifest.
    has_tokens
        Whether anonymous packets are admitted by tokens; otherwise by tickets.
    phase_timeout
        Milliseconds; None computes it from the study.
    """

    study: str
    roster: str
    relay: str | None
    epoch: str | None
    has_tokens: bool
    phase_timeout: int | None


async def show_publish_form(_: CoordinatorService, request: Request) -> Response:
    read_query(request)
    return html_response(study_pages.render_publish())


async def publish_study(service: CoordinatorService, request: Request) -> Response:
    """Publish the study of the form; if that fails, return the form with the error.

    The returned form does not contain the key.
    """
    fields = await _read_fields(request, MAX_FORM_BYTES)
    given = {
        name: fields.get(name, b"").decode("utf-8", "replace")
        for name in study_pages.PUBLISH_FIELDS
    }
    try:
        _check_analyst_key(service, fields)
    except RemoteProtocolError as error:
        short = {name: text if len(text) <= _MAX_RETURNED else "" for name, text in given.items()}
        return _return_form(error, lambda problem: study_pages.render_publish(short, problem))
    try:
        form = _parse_publish_request(given, fields.get("study_file", b""))
        draft = await run_in_threadpool(_make_draft, form)
        keys = (
            await service.get_issuing_keys()
            if form.has_tokens and is_anonymous(draft.study)
            else None
        )
        manifest = _add_keys(draft, form, keys)
        manifest = await service.add_schedule(manifest, form.phase_timeout)
        record = await service.publish(manifest.to_bytes(), phase_timeout=form.phase_timeout)
    except ShoalError as error:
        return _return_form(error, lambda problem: study_pages.render_publish(given, problem))
    return _redirect(f"/studies/{record.digest}")


async def show_close_form(service: CoordinatorService, request: Request) -> Response:
    read_query(request)
    return html_response(_render_close_form(await service.get_study(read_digest(request))))


async def close_study(service: CoordinatorService, request: Request) -> Response:
    """End a study as its analyst; a study that has ended does not change."""
    view = await service.get_study(read_digest(request))
    fields = await _read_fields(request, _KEY_FORM_BYTES)
    try:
        _check_analyst_key(service, fields)
    except RemoteProtocolError as error:
        return _return_form(error, lambda problem: _render_close_form(view, problem))
    await service.close_study(view.digest)
    return _redirect(f"/studies/{view.digest}")


async def _read_fields(request: Request, limit: int) -> dict[str, bytes]:
    read_query(request)
    # All browsers send this header. A program without it endangers only its own user.
    if request.headers.get("sec-fetch-site", "none") not in _OWN_PAGES:
        raise RequestError(
            403,
            "HOST-006",
            "The form was sent by a page of another origin.",
            fix="Open the form on this dashboard and fill it in.",
        )
    kind = request.headers.get("content-type", "")
    return parse_fields(kind, await read_body(request, limit))


def _check_analyst_key(service: CoordinatorService, fields: Mapping[str, bytes]) -> None:
    """Raise ``AUTH-001`` or ``AUTH-002`` without the analyst's key; called before other checks."""
    key = fields.get("key", b"").decode("utf-8", "replace").strip()
    if not key:
        raise RemoteProtocolError(
            "AUTH-001", "Only the analyst may do this.", fix="Enter the analyst's key."
        )
    if len(key) > _MAX_KEY or not service.is_analyst(key):
        fix = "Enter the key that shoal serve printed when it first used this coordinator's store."
        raise RemoteProtocolError("AUTH-002", "This is not the analyst's key.", fix=fix)


def _parse_publish_request(given: Mapping[str, str], file: bytes) -> PublishRequest:
    if len(file) > MAX_STUDY_BYTES or len(given["study"]) > MAX_STUDY_BYTES:
        fix = "Keep rows in a separate file; a study file contains no data."
        raise SpecError("SPEC-001", f"The study is larger than {MAX_STUDY_BYTES:,} bytes.", fix=fix)
    try:
        study = file.decode("utf-8-sig") if file else given["study"]
    except UnicodeDecodeError as error:
        line = file.count(b"\n", 0, error.start) + 1
        what = f"study.toml:{line}  The study file is not UTF-8 text."
        raise SpecError("SPEC-001", what, fix="Save it as UTF-8 in an editor.") from None
    if not study.strip():
        raise SpecError(
            "SPEC-001", "There is no study in the form.", fix="Choose a file, or paste its text."
        )
    patience = given["patience"].strip()
    if patience and not (
        patience.isascii()
        and patience.isdigit()
        and len(patience) < 12
        and int(patience) in PHASE_TIMEOUTS
    ):
        raise SpecError(
            "HOST-003",
            f"{patience!a:.30} is not a number of seconds that a phase can wait.",
            fix="Enter a number from 1 to 31622400, or leave the field empty.",
        )
    relay, epoch = given["relay"].strip() or None, given["epoch"].strip() or None
    return PublishRequest(
        study,
        given["roster"].strip(),
        relay,
        epoch,
        not given["tickets"],
        1000 * int(patience) if patience else None,
    )


def _make_draft(request: PublishRequest) -> Manifest:
    study = parse_study_text(request.study)
    left = find_unfinished_in_text(request.study)
    if left:
        raise SpecError("SERVE-005", f"The study is still a draft. {' '.join(left)}", fix=DRAFT_FIX)
    roster = parse_roster(request.roster) if request.roster else ()
    if roster and not get_protocol(study).holders.are_organisations:
        raise SpecError(
            "SERVE-004",
            f"A study of {study.protocol} cannot have a roster.",
            why=f"Only studies of {list_roster_protocols()} have one.",
            fix="Leave the roster empty.",
        )
    return Manifest(study, roster=roster)


def list_roster_protocols() -> str:
    """Return the names of the protocols with rosters, for a sentence."""
    return " and ".join(
        name for name, protocol in PROTOCOLS.items() if protocol.holders.are_organisations
    )


def _add_keys(draft: Manifest, request: PublishRequest, keys: Issuing | None) -> Manifest:
    """Return the manifest with the coordinator's keys, if packets are admitted by tokens.

    Without tokens, a relay or an epoch is rejected.
    """
    if keys is None:
        for what, value in (("relay", request.relay), ("epoch", request.epoch)):
            if value is not None:
                why = "Its packets are not anonymous, or are admitted by tickets."
                raise SpecError(
                    "HOST-003",
                    f"This study cannot use the {what}.",
                    why=why,
                    fix="Leave the field empty.",
                )
        return draft
    issuer_key, gateway_key = bytes.fromhex(keys.issuer_key), bytes.fromhex(keys.gateway_key)
    return replace(
        draft,
        issuer_key=issuer_key,
        gateway_key=gateway_key,
        relay=request.relay,
        epoch=request.epoch,
    )


def _render_close_form(view: StudyView, problem: Mapping[str, str | None] | None = None) -> str:
    manifest = view.manifest
    return study_pages.render_close(
        view.digest,
        manifest.short_digest,
        clean_text(manifest.study.title),
        view.record.status,
        problem,
    )


def _return_form(error: ShoalError, page: Callable[[Mapping[str, str | None]], str]) -> Response:
    """Return the form with an error; usage errors of the command line apply to the form too."""
    if isinstance(error, UsageError):
        error = SpecError(error.code, error.what, why=error.why, fix=error.fix)
    status, headers, problem = describe_error(error)
    return html_response(page(problem), status, headers=headers)


def _redirect(path: str) -> Response:
    """Redirect to a page, so that reloading it does not send the form again."""
    return Response(status_code=303, headers={"location": path, "referrer-policy": "no-referrer"})
