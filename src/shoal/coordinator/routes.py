"""What each route does: read the request, see who it is, ask the `Office`, write the answer. `ROUTES` is the whole list.

Anonymous routes (``submissions``, and DDML's ``update`` unless it is signed) give one answer, whatever became of what was sent, so that
the answer says nothing and a spammer learns nothing. Two things are said all the same, since they do not depend on what was sent: that
there is no such study here, and that nothing could be stored now, because what is acknowledged is stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from shoal.coordinator.aggregators import most_bytes
from shoal.coordinator.authentication import caller, check_analyst, signer
from shoal.coordinator.gateway import MAX_SEALED_BYTES, answered, opened_packets
from shoal.coordinator.metrics import CONTENT_TYPE, exposition
from shoal.coordinator.openapi import document
from shoal.errors import RemoteProtocolError, TransportError
from shoal.messages import codec
from shoal.study.manifest import Manifest, short
from shoal.study.wording_tokens import statement_of
from shoal.transport import ohttp
from shoal.transport.forms import Batch, Enrolment, Poll, from_cbor, to_cbor, to_json
from shoal.transport.problems import RequestError, not_here, over
from shoal.transport.reading import NUMBERS, PATIENCES, WAITS, body_of, body_up_to, check_type, digest_of, empty_body, form_of, query_of
from shoal.transport.routes import CBOR, GATEWAY, ISSUING, JSON, KEYS, OPENAPI, OPENED, SEALED, STUDIES, study_route

if TYPE_CHECKING:
    from shoal.coordinator.office import Office, Served

Endpoint = Callable[["Office", Request], Awaitable[Response]]

TEXT = "text/plain"
_FOR_EVER = {"cache-control": "public, max-age=3600"}
_FOR_A_MOMENT = {"cache-control": "public, max-age=1"}
_ANY = "{digest}"
_NAME = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Way:
    """A method of a path, and what answers it."""

    method: str
    path: str
    endpoint: Endpoint


async def list_studies(office: Office, request: Request) -> Response:
    query_of(request)
    return _json([summary_of(await office.study(hosted.digest)) for hosted in await office.studies()])


async def show_study(office: Office, request: Request) -> Response:
    return _json(summary_of(await _served(office, request)))


async def publish_study(office: Office, request: Request) -> Response:
    check_analyst(office, request)
    asked = query_of(request, {"patience": PATIENCES})
    check_type(request, CBOR)
    manifest = await body_of(request, codec.MAX_BYTES)
    patience = 1000 * asked["patience"] if asked else None
    hosted = await office.publish(manifest, patience=patience)
    answer = _json(summary_of(await office.study(hosted.digest)), status=201)
    answer.headers["location"] = study_route(hosted.digest)
    return answer


async def close_study(office: Office, request: Request) -> Response:
    check_analyst(office, request)
    served = await _served(office, request)
    await empty_body(request)
    await office.close_study(served.hosted.digest)
    return Response(status_code=204)


async def manifest(office: Office, request: Request) -> Response:
    served = await _served(office, request)
    return Response(served.published, headers=_FOR_EVER, media_type=CBOR)


async def label(office: Office, request: Request) -> Response:
    served = await _served(office, request)
    as_json, as_text = await run_in_threadpool(_label, served.hosted.manifest)
    headers = {"vary": "Accept"}
    if _prefers_text(request.headers.get("accept", "")):
        return Response(as_text, headers=headers, media_type=TEXT)
    return Response(as_json, headers=headers, media_type=JSON)


async def progress(office: Office, request: Request) -> Response:
    served = await _served(office, request)
    return _json(await office.progress(served.hosted.digest))


async def model(office: Office, request: Request) -> Response:
    hosted = (await _served(office, request)).hosted
    if hosted.status in ("failed", "closed"):
        raise RequestError(410, "HOST-002", "The study has ended without a model.", why=hosted.reason)
    return Response(await office.model(hosted.digest), media_type=JSON)


async def board(office: Office, request: Request) -> Response:
    asked = query_of(request, {"after": NUMBERS, "wait": WAITS})
    served = await office.study(digest_of(request))
    letters = await office.board(served.hosted.digest, asked.get("after", 0), asked.get("wait", 0))
    return Response(to_cbor(letters), headers=_FOR_A_MOMENT, media_type=CBOR)


async def enrol(office: Office, request: Request) -> Response:
    served = await _served(office, request)
    form, body = await form_of(request, Enrolment)
    signed = signer(request, body, office.clock)
    enrolled = await office.enrol(served.hosted.digest, signed.key, form, signed.nonce)
    return Response(to_json(enrolled), media_type=JSON)


async def message(office: Office, request: Request) -> Response:
    served = await _served(office, request)
    check_type(request, CBOR)
    body = await body_of(request, most_bytes(served.manifest.study, is_anonymous=False))
    digest = served.hosted.digest
    who = await caller(office, request, digest, body)
    match await office.message(digest, who.name, body, who.nonce):
        case "replayed":
            raise RemoteProtocolError("AUTH-005", "This request came before.", fix="Sign it again.")
        case "conflict":
            raise RemoteProtocolError("HOST-005", "Other bytes were sent before under the name of this message.", fix="Send those again.")
        case "over":
            raise over(digest)
    return _accepted()


async def mailbox(office: Office, request: Request) -> Response:
    served = await _served(office, request)
    poll, body = await form_of(request, Poll)
    digest = served.hosted.digest
    who = await caller(office, request, digest, body)
    return Response(to_cbor(await office.mailbox(digest, who.name, poll, who.nonce)), media_type=CBOR)


async def leave(office: Office, request: Request) -> Response:
    served = await _served(office, request)
    body = await empty_body(request)
    digest = served.hosted.digest
    who = await caller(office, request, digest, body)
    await office.leave(digest, who.key, who.nonce)
    return Response(status_code=204)


async def submit(office: Office, request: Request) -> Response:
    served = await office.study(digest_of(request))
    body = await body_up_to(request, served.packet_size or most_bytes(served.manifest.study, is_anonymous=True))
    await office.submit(served.hosted.digest, body)
    return _accepted()


async def members(office: Office, request: Request) -> Response:
    after = _after(request)
    return Response(await office.members(digest_of(request), after), media_type=CBOR)


async def received(office: Office, request: Request) -> Response:
    after = _after(request)
    return Response(await office.received(digest_of(request), after), headers=_FOR_A_MOMENT, media_type=CBOR)


async def take_batch(office: Office, request: Request) -> Response:
    served = await _served(office, request)
    size = served.packet_size
    if size is None:
        raise not_here("This study takes no sealed packets.")
    check_type(request, CBOR)
    body = await body_of(request, codec.MAX_BYTES)
    digest = served.hosted.digest
    packets = await run_in_threadpool(lambda: opened_packets(office.gateway, digest, from_cbor(body, Batch).packets, size))
    return Response(to_cbor(await office.batch(digest, packets)), media_type=CBOR)


async def issuing(office: Office, request: Request) -> Response:
    query_of(request)
    return Response(to_json(await office.issuing()), headers=_FOR_EVER, media_type=JSON)


async def gateway_keys(office: Office, request: Request) -> Response:
    query_of(request)
    return Response(office.gateway.configuration(), headers=_FOR_EVER, media_type=ohttp.KEYS)


async def sealed(office: Office, request: Request) -> Response:
    query_of(request)
    check_type(request, SEALED)
    body = await body_of(request, MAX_SEALED_BYTES)
    return Response(await answered(office.gateway, request.app, body, office.clock.now()), media_type=OPENED)


async def device(office: Office, request: Request) -> Response:
    """Draws and updates of studies of DDML are answered before they come here; no other study has them."""
    served = await office.study(digest_of(request))
    raise not_here(f"A study of {served.protocol} has no model instances.")


async def healthz(_: Office, request: Request) -> Response:
    query_of(request)
    return _json({"status": "ok"})


async def readyz(office: Office, request: Request) -> Response:
    query_of(request)
    if not await office.is_ready():
        raise TransportError("HOST-004", "The coordinator is not ready.")
    return _json({"status": "ok"})


async def metrics(office: Office, request: Request) -> Response:
    query_of(request)
    return Response(exposition(await office.totals()), headers={"content-type": CONTENT_TYPE})


async def openapi(_: Office, request: Request) -> Response:
    query_of(request)
    return Response(_document(), headers=_FOR_EVER, media_type=JSON)


ROUTES = (
    Way("GET", STUDIES, list_studies),
    Way("POST", STUDIES, publish_study),
    Way("GET", study_route(_ANY), show_study),
    Way("GET", study_route(_ANY, "manifest"), manifest),
    Way("GET", study_route(_ANY, "label"), label),
    Way("GET", study_route(_ANY, "board"), board),
    Way("GET", study_route(_ANY, "progress"), progress),
    Way("GET", study_route(_ANY, "model"), model),
    Way("GET", study_route(_ANY, "members"), members),
    Way("GET", study_route(_ANY, "received"), received),
    Way("POST", study_route(_ANY, "enrolments"), enrol),
    Way("POST", study_route(_ANY, "messages"), message),
    Way("POST", study_route(_ANY, "mailbox"), mailbox),
    Way("POST", study_route(_ANY, "leave"), leave),
    Way("POST", study_route(_ANY, "submissions"), submit),
    Way("POST", study_route(_ANY, "batches"), take_batch),
    Way("POST", study_route(_ANY, "draw"), device),
    Way("POST", study_route(_ANY, "update"), device),
    Way("POST", study_route(_ANY, "close"), close_study),
    Way("GET", ISSUING, issuing),
    Way("GET", KEYS, gateway_keys),
    Way("POST", GATEWAY, sealed),
    Way("GET", OPENAPI, openapi),
    Way("GET", "/healthz", healthz),
    Way("GET", "/readyz", readyz),
    Way("GET", "/metrics", metrics),
)


def wrong_method(allowed: str) -> RequestError:
    """The error for a method that a path does not have."""
    return RequestError(405, "HOST-006", "This route does not take that method.", fix=f"It takes {allowed}.", headers={"allow": allowed})


async def _served(office: Office, request: Request) -> Served:
    query_of(request)
    return await office.study(digest_of(request))


def _after(request: Request) -> bytes:
    """The name after which a page of a list begins; empty for its beginning."""
    asked = request.query_params.multi_items()
    if not asked:
        return b""
    if len(asked) > 1 or asked[0][0] != "after" or not _NAME.fullmatch(asked[0][1]):
        raise RequestError(400, "HOST-006", "The query is not after, once, with the 64 hexadecimal digits of a name.")
    return bytes.fromhex(asked[0][1])


def summary_of(served: Served) -> dict[str, Any]:
    """A study in a few lines, for lists."""
    hosted, study = served.hosted, served.manifest.study
    return {
        "digest": hosted.digest,
        "short": short(bytes.fromhex(hosted.digest)),
        "title": study.title,
        "protocol": served.protocol,
        "admission": served.admission,
        "has_roster": bool(served.manifest.roster),
        "by_invitation": hosted.by_invitation,
        "status": hosted.status,
        "reason": hosted.reason,
    }


@lru_cache(maxsize=64)
def _label(data: bytes) -> tuple[bytes, bytes]:
    """The label of a manifest, as JSON and as text."""
    read = Manifest.from_bytes(data)
    statement = statement_of(read)
    return json.dumps(statement.to_dict(), ensure_ascii=False).encode(), f"{statement}\n".encode()


def _prefers_text(accept: str) -> bool:
    """Whether text is named, and JSON is not named before it."""
    named = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return next((name == TEXT for name in named if name in (TEXT, JSON)), False)


@lru_cache(maxsize=1)
def _document() -> bytes:
    return json.dumps(document()).encode()


def _accepted() -> Response:
    return Response(status_code=202)


def _json(content: object, status: int = 200) -> Response:
    return Response(json.dumps(content, ensure_ascii=False).encode(), status, media_type=JSON)
