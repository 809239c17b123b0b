"""Request handlers of the HTTP API.

`shoal.coordinator.routes` has the table that maps paths to them. A handler reads the request
strictly, authenticates it, calls `CoordinatorService` or one of its parts, and writes the
response.

Anonymous routes (``submissions``, and DDML's ``update`` unless it is signed) give one response to
all submissions: it says nothing about the sender, and a spammer learns nothing from it. Two errors
are reported nevertheless, because they do not depend on the submission: the study does not exist,
and the store cannot be used. A submission that is acknowledged is stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from shoal.coordinator.authentication import (
    authenticate,
    check_analyst,
    check_relay,
    verify_signer,
)
from shoal.coordinator.gateway import answer_sealed, open_packet_or_empty
from shoal.coordinator.lanes import Pace
from shoal.coordinator.metrics import CONTENT_TYPE, format_metrics
from shoal.coordinator.service import CoordinatorService
from shoal.coordinator.studies import StudyView
from shoal.coordinator.submissions import BATCH_GROUP
from shoal.errors import RemoteProtocolError, TransportError
from shoal.messages import codec
from shoal.study.handle import StudyHandle
from shoal.study.manifest import shorten_digest
from shoal.transport import ohttp
from shoal.transport.api import (
    CBOR,
    JSON,
    OHTTP_REQUEST,
    OHTTP_RESPONSE,
    Enrolment,
    Poll,
    study_route,
    to_cbor,
    to_json,
)
from shoal.transport.bodies import release_body_bytes
from shoal.transport.packets import (
    DEFAULT_SEALED_BYTES,
    PacketBatchParser,
    compute_max_part,
    compute_sealed_size,
)
from shoal.transport.requests import (
    MESSAGE_NUMBERS,
    PHASE_TIMEOUTS,
    WAIT_SECONDS,
    RequestError,
    body_too_large_error,
    check_content_type,
    not_found_error,
    read_body,
    read_body_up_to,
    read_content_length,
    read_digest,
    read_empty_body,
    read_form,
    read_query,
    run_until_disconnect,
)

TEXT = "text/plain"
LONG_CACHE = {"cache-control": "public, max-age=3600"}
_SHORT_CACHE = {"cache-control": "public, max-age=1"}
_NAME = re.compile(r"[0-9a-f]{64}")


async def list_studies(service: CoordinatorService, request: Request) -> Response:
    read_query(request)
    return json_response([summarize_study(view) for view in await service.list_studies()])


async def show_study(service: CoordinatorService, request: Request) -> Response:
    return json_response(summarize_study(await open_study(service, request)))


async def publish_study(service: CoordinatorService, request: Request) -> Response:
    check_analyst(service, request)
    query = read_query(request, {"patience": PHASE_TIMEOUTS})
    check_content_type(request, CBOR)
    manifest = await read_body(request, codec.MAX_BYTES)
    phase_timeout = 1000 * query["patience"] if query else None
    record = await service.publish(manifest, phase_timeout=phase_timeout)
    response = json_response(summarize_study(await service.get_study(record.digest)), status=201)
    response.headers["location"] = study_route(record.digest)
    return response


async def close_study(service: CoordinatorService, request: Request) -> Response:
    check_analyst(service, request)
    view = await open_study(service, request)
    await read_empty_body(request)
    await service.close_study(view.record.digest)
    return Response(status_code=204)


async def get_manifest(service: CoordinatorService, request: Request) -> Response:
    view = await open_study(service, request)
    return Response(view.signed_manifest, headers=LONG_CACHE, media_type=CBOR)


async def get_label(service: CoordinatorService, request: Request) -> Response:
    view = await open_study(service, request)
    as_json, as_text = await run_in_threadpool(_render_label, view.handle)
    headers = {"vary": "Accept"}
    if _prefers_text(request.headers.get("accept", "")):
        return Response(as_text, headers=headers, media_type=TEXT)
    return Response(as_json, headers=headers, media_type=JSON)


async def get_progress(service: CoordinatorService, request: Request) -> Response:
    view = await open_study(service, request)
    return json_response(await service.get_progress(view.record.digest))


async def get_model(service: CoordinatorService, request: Request) -> Response:
    return Response(get_result(await open_study(service, request)), media_type=JSON)


async def get_broadcasts(service: CoordinatorService, request: Request) -> Response:
    query = read_query(request, {"after": MESSAGE_NUMBERS, "wait": WAIT_SECONDS})
    view = await service.get_study(read_digest(request))
    page = await run_until_disconnect(
        request,
        service.mailbox.fetch(
            view.record.digest, None, query.get("after", 0), query.get("wait", 0)
        ),
    )
    return Response(to_cbor(page), headers=_SHORT_CACHE, media_type=CBOR)


async def enrol(service: CoordinatorService, request: Request) -> Response:
    view = await open_study(service, request)
    form, body = await read_form(request, Enrolment)
    signed = verify_signer(request, body, service.clock)
    enrolled = await run_until_disconnect(
        request, service.registrar.enrol(view, signed.key, form, signed.nonce)
    )
    return Response(to_json(enrolled), media_type=JSON)


async def accept_message(service: CoordinatorService, request: Request) -> Response:
    view = await open_study(service, request)
    check_content_type(request, CBOR)
    body = await read_body(request, view.handle.protocol.compute_max_bytes(is_anonymous=False))
    caller = await authenticate(service, request, view.record.digest, body)
    await service.submissions.accept_message(view, caller.name, body, caller.nonce)
    return _accepted_response()


async def poll_mailbox(service: CoordinatorService, request: Request) -> Response:
    view = await open_study(service, request)
    poll, body = await read_form(request, Poll)
    digest = view.record.digest
    caller = await authenticate(service, request, digest, body)
    page = await run_until_disconnect(
        request, service.mailbox.poll(digest, caller.name, poll, caller.nonce)
    )
    return Response(to_cbor(page), media_type=CBOR)


async def leave(service: CoordinatorService, request: Request) -> Response:
    view = await open_study(service, request)
    body = await read_empty_body(request)
    digest = view.record.digest
    caller = await authenticate(service, request, digest, body)
    await service.registrar.leave(digest, caller.key, caller.nonce)
    return Response(status_code=204)


async def submit(service: CoordinatorService, request: Request) -> Response:
    view = await service.get_study(read_digest(request))
    handle = view.handle
    limit = handle.packet_size or handle.protocol.compute_max_bytes(is_anonymous=True)
    body = await read_body_up_to(request, limit)
    await run_until_disconnect(request, service.submissions.submit(view, body))
    return _accepted_response()


async def list_members(service: CoordinatorService, request: Request) -> Response:
    after = _parse_after(request)
    return Response(await service.list_members(read_digest(request), after), media_type=CBOR)


async def list_received(service: CoordinatorService, request: Request) -> Response:
    after = _parse_after(request)
    return Response(
        await service.list_received(read_digest(request), after),
        headers=_SHORT_CACHE,
        media_type=CBOR,
    )


async def accept_batch(service: CoordinatorService, request: Request) -> Response:
    view = await open_study(service, request)
    size = view.get_packet_size()
    check_relay(view, request)
    check_content_type(request, CBOR)
    sealed_size, digest = compute_sealed_size(size), view.record.digest
    chunks = _read_chunks(request, service.batch_pace)
    receipt = await service.submissions.accept_batch(
        view,
        _read_packets(request, chunks, PacketBatchParser(sealed_size, compute_max_part(size))),
        partial(open_packet_or_empty, service.gateway, digest, sealed_size),
    )
    # A relay sends all of a batch before it reads the receipt, also of one that is abandoned.
    async for chunk in chunks:
        release_body_bytes(request.scope, len(chunk))
    return Response(to_cbor(receipt), media_type=CBOR)


async def _read_chunks(request: Request, pace: Pace) -> AsyncIterator[bytes]:
    """Yield the body as it arrives; all batches together have a limited pace."""
    n_read, is_more = 0, True
    while is_more:
        await pace.wait()
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        is_more = message.get("more_body", False)
        n_read += len(message.get("body", b""))
        if n_read > codec.MAX_BYTES:
            raise body_too_large_error(codec.MAX_BYTES)
        yield message.get("body", b"")


async def _read_packets(
    request: Request, chunks: AsyncIterator[bytes], parser: PacketBatchParser
) -> AsyncIterator[Sequence[bytes]]:
    """Yield the packets of a batch in small groups, as they arrive."""
    group: list[bytes] = []
    n_kept = 0
    async for chunk in chunks:
        group += parser.feed(chunk)
        while len(group) >= BATCH_GROUP:
            yield group[:BATCH_GROUP]
            del group[:BATCH_GROUP]
        n_before, n_kept = n_kept + len(chunk), sum(map(len, group))
        release_body_bytes(request.scope, n_before - n_kept)
    if not parser.is_complete:
        raise RemoteProtocolError("MSG-002", "The body ends before the batch.")
    yield group


async def get_issuing_keys(service: CoordinatorService, request: Request) -> Response:
    read_query(request)
    return Response(to_json(await service.get_issuing_keys()), headers=LONG_CACHE, media_type=JSON)


async def get_gateway_keys(service: CoordinatorService, request: Request) -> Response:
    read_query(request)
    return Response(
        service.gateway.encode_key_configuration(),
        headers=LONG_CACHE,
        media_type=ohttp.KEYS_CONTENT_TYPE,
    )


async def answer_gateway(service: CoordinatorService, request: Request) -> Response:
    read_query(request)
    check_content_type(request, OHTTP_REQUEST)
    limit = DEFAULT_SEALED_BYTES
    if read_content_length(request) > limit:
        limit = await service.find_max_sealed_bytes()
    body = await read_body(request, limit)
    now = service.clock.now()
    return Response(
        await answer_sealed(service.gateway, request.app, body, now, request.receive),
        media_type=OHTTP_RESPONSE,
    )


async def reject_draw_or_update(service: CoordinatorService, request: Request) -> Response:
    """Reject draws and updates of other protocols; `DDMLFastPath` answers those of DDML."""
    view = await service.get_study(read_digest(request))
    raise not_found_error(
        f"This is a study of {view.handle.study.protocol}, which has no model instances."
    )


async def healthz(_: CoordinatorService, request: Request) -> Response:
    read_query(request)
    return json_response({"status": "ok"})


async def readyz(service: CoordinatorService, request: Request) -> Response:
    read_query(request)
    if not await service.is_ready():
        raise TransportError("HOST-004", "The coordinator is not ready.")
    return json_response({"status": "ok"})


async def get_metrics(service: CoordinatorService, request: Request) -> Response:
    read_query(request)
    return Response(
        format_metrics(await service.list_totals()), headers={"content-type": CONTENT_TYPE}
    )


async def open_study(service: CoordinatorService, request: Request) -> StudyView:
    read_query(request)
    return await service.get_study(read_digest(request))


def _parse_after(request: Request) -> bytes:
    """Return the name after which a page of a list begins; empty for the first page."""
    query = request.query_params.multi_items()
    if not query:
        return b""
    if len(query) > 1 or query[0][0] != "after" or not _NAME.fullmatch(query[0][1]):
        raise RequestError(
            400,
            "HOST-006",
            "The query has to be one parameter: after, with the 64 hexadecimal digits of a name.",
        )
    return bytes.fromhex(query[0][1])


def summarize_study(view: StudyView) -> dict[str, Any]:
    """Return the summary of a study, as lists contain it."""
    record, study = view.record, view.handle.study
    return {
        "digest": record.digest,
        "short": shorten_digest(bytes.fromhex(record.digest)),
        "title": study.title,
        "protocol": study.protocol,
        "admission": view.admission,
        "has_roster": bool(view.manifest.roster),
        "by_invitation": record.by_invitation,
        "status": record.status,
        "reason": record.reason,
    }


def get_result(view: StudyView) -> bytes:
    """Return a study's result, as JSON; raise ``HOST-002`` if it has none (yet)."""
    record = view.record
    if record.result is not None:
        return record.result
    if record.status == "open":
        raise RequestError(
            409,
            "HOST-002",
            "The study is still open and has no model yet.",
            fix="Ask again after the study has ended.",
        )
    raise RequestError(410, "HOST-002", "The study has ended without a model.", why=record.reason)


def _render_label(handle: StudyHandle) -> tuple[bytes, bytes]:
    """Return the label of a study, as JSON and as text."""
    statement = handle.label()
    return json.dumps(statement.to_dict(), ensure_ascii=False).encode(), f"{statement}\n".encode()


def _prefers_text(accept: str) -> bool:
    """Return whether the header names plain text, and JSON not before it."""
    names = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return next((name == TEXT for name in names if name in (TEXT, JSON)), False)


def _accepted_response() -> Response:
    return Response(status_code=202)


def json_response(data: object, status: int = 200) -> Response:
    return Response(json.dumps(data, ensure_ascii=False).encode(), status, media_type=JSON)
