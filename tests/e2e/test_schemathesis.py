"""Requests generated from the OpenAPI document, valid and invalid, against a real coordinator.

None causes an internal error, each response is in the document, and a rejected request changes
nothing. Some are signed by an enrolled key or carry the analyst's key, and name existing studies.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import cbor2
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from shoal.clock import SystemClock, to_milliseconds
from shoal.entropy import SystemEntropy
from shoal.study.schedule import Schedule
from shoal.transport import ohttp
from shoal.transport.api import (
    CBOR,
    GATEWAY,
    ISSUING,
    JSON,
    MAX_WAIT_SECONDS,
    OHTTP_REQUEST,
    OPENAPI,
    STUDIES,
    Issuing,
    PacketBatch,
    from_json,
    study_route,
    to_cbor,
)
from shoal.transport.bhttp import BinaryRequest
from shoal.transport.packets import seal_packet
from shoal.transport.signing import sign_request
from tests.support.coordinator import ticket
from tests.support.hostile import (
    DIGESTS,
    MANIFESTS,
    MEMBER,
    STRANGER,
    HostileCoordinator,
    answer,
    hostile_coordinator,
    now,
    tables,
)
from tests.support.participants import make_manifest

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SIGNED = ("enrol", "sendMessage", "readMailbox", "leave", "sendUpdate")
ANALYST = ("publishStudy", "closeStudy")
BODIES: Mapping[str, tuple[bytes, ...]] = {
    "sendMessage": (tables(), tables(2), answer()),
    "submit": (answer(), answer(report=b"\x01"), tables()),
    "publishStudy": tuple(manifest.to_bytes() for manifest in MANIFESTS.values()),
}
"""What fits where it is sent, and what fits elsewhere; no chance would make it."""
PACKETS = "packets"
"""Name of the study with tokens."""


@schemathesis.serializer(CBOR)
def as_cbor(_: Any, value: Any) -> bytes:
    return (
        _raw(value)
        if isinstance(value, bytes) or hasattr(value, "data")
        else cbor2.dumps(value, default=lambda *_: None)
    )


def _raw(value: Any) -> bytes:
    return value if isinstance(value, bytes) else bytes(value.data)


@schemathesis.serializer(OHTTP_REQUEST)
def as_sealed(_: Any, value: Any) -> bytes:
    return (
        _raw(value) if isinstance(value, bytes) or hasattr(value, "data") else repr(value).encode()
    )


@pytest.fixture
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileCoordinator]:
    with hostile_coordinator(tmp_path_factory.mktemp("described")) as found:
        yield found


class Sender:
    """Sends cases; compares responses with the OpenAPI document and rejections with the store."""

    def __init__(self, coordinator: HostileCoordinator) -> None:
        self._coordinator, self._http = coordinator, requests.Session()
        self._http.trust_env = False
        self._digests = {**DIGESTS, PACKETS: self._publish_packets()}
        self._bodies = {**BODIES, **self._sealed()}
        self._kept = coordinator.settled()
        self._nonces = set(self._kept.pop("nonce"))
        self.statuses: Counter[int] = Counter()

    def _publish_packets(self) -> str:
        """Publish a study with tokens of this coordinator."""
        keys = from_json(
            self._http.get(self._coordinator.url + ISSUING, timeout=180).content, Issuing
        )
        self._gateway_key = bytes.fromhex(keys.gateway_key)
        manifest = replace(
            make_manifest("anonml"),
            issuer_key=bytes.fromhex(keys.issuer_key),
            gateway_key=self._gateway_key,
            relay=None,
            schedule=Schedule(to_milliseconds(SystemClock().now()), 86_400_000),
        )
        found = self._coordinator.post(
            STUDIES, manifest.to_bytes(), CBOR, **self._coordinator.bearer
        )
        assert found.status == 201, found.body
        return manifest.digest.hex()

    def _sealed(self) -> dict[str, tuple[bytes, ...]]:
        """Return requests and packets that can be opened, with any content."""
        requests = (
            BinaryRequest("GET", STUDIES),
            BinaryRequest("POST", GATEWAY),
            BinaryRequest("GET", study_route(self._digests[PACKETS], "members")),
        )
        packets = tuple(
            seal_packet(self._gateway_key, self._digests[PACKETS], bytes(n)) for n in (0, 640)
        )
        return {
            "openSealed": tuple(
                ohttp.seal_request(self._gateway_key, one.to_bytes(1024)) for one in requests
            ),
            "takeBatch": tuple(
                to_cbor(PacketBatch(packets=some)) for some in ((), packets, (b"rubbish", *packets))
            ),
        }

    def send(self, case: Any, choices: Mapping[str, Any]) -> None:
        """Send a case, with valid credentials if the choices say so."""
        operation = case.operation.definition.raw["operationId"]
        if (
            choices["study"] is not None
            and isinstance(case.path_parameters, dict)
            and "digest" in case.path_parameters
        ):
            case.path_parameters["digest"] = self._digests[
                "closed" if operation == "closeStudy" else choices["study"]
            ]
        _hurry(case)
        made = requests.Request(
            **_without_extras(case.as_transport_kwargs(base_url=self._coordinator.url))
        ).prepare()
        if choices["body"] is not None and operation in self._bodies:
            made.prepare_body(
                self._bodies[operation][choices["body"] % len(self._bodies[operation])], None
            )
            made.headers["content-type"] = OHTTP_REQUEST if operation == "openSealed" else CBOR
        if choices["kind"] is not None and made.body:
            made.headers["content-type"] = choices["kind"]
        if operation in SIGNED and choices["who"] is not None:
            body = made.body.encode() if isinstance(made.body, str) else made.body or b""
            made.headers["authorization"] = sign_request(
                choices["who"], "POST", made.path_url, body, now(), SystemEntropy()
            )
        elif operation in ANALYST and choices["who"] is MEMBER:
            made.headers.update(self._coordinator.bearer)
        if operation == "sendUpdate" and choices["who"] is not None:
            made.headers["shoal-ticket"] = f"{ticket(0).hex()} 0"
        reply = self._http.send(made, timeout=180, allow_redirects=False)
        self.statuses[reply.status_code] += 1
        case.validate_response(reply, checks=CHECKS)
        kept = self._coordinator.settled()
        # Old nonces are deleted in any case.
        before, nonces = self._kept, set(kept.pop("nonce"))
        self._kept, self._nonces, known = kept, nonces, self._nonces
        if reply.status_code >= 400:
            assert kept == before, f"a refused {operation} has changed something"
            # The nonce of a refused enrolment stays used: a replay must not cost a signature.
            assert nonces <= known or reply.status_code == 409 or operation == "enrol", (
                f"a refused {operation} is remembered"
            )


def _hurry(case: Any) -> None:
    """Set short waits, so that no long poll delays the test."""
    for place, name in ((case.query, "wait"), (case.body, "wait_seconds")):
        if isinstance(place, dict) and str(place.get(name)) in map(
            str, range(MAX_WAIT_SECONDS + 1)
        ):
            place[name] = 0


def _without_extras(given: dict[str, Any]) -> dict[str, Any]:
    return {
        key: given[key]
        for key in ("method", "url", "headers", "params", "data", "json", "cookies", "files")
        if given.get(key) is not None
    }


CHOICES = st.fixed_dictionaries(
    {
        "study": st.sampled_from((None, *DIGESTS, PACKETS, PACKETS)),
        "who": st.sampled_from((MEMBER, MEMBER, STRANGER, None)),
        "body": st.none() | st.integers(0, 2),
        "kind": st.sampled_from((None, None, None, "text/html")),
        "turn": st.integers(0, 1 << 32),
    }
)


def search(coordinator: HostileCoordinator, n_each: int, start: int) -> Counter[int]:
    """Send valid and invalid cases of each operation; return the number of each status."""
    sender = Sender(coordinator)
    schema = schemathesis.openapi.from_url(coordinator.url + OPENAPI)
    for found in schema.get_all_operations():
        operation = found.ok()
        # What takes nothing, or any bytes, cannot be given what does not fit.
        takes_something = bool(list(operation.iter_parameters())) or any(
            body.media_type == JSON for body in operation.body
        )
        for mode in (
            GenerationMode.POSITIVE,
            GenerationMode.NEGATIVE if takes_something else GenerationMode.POSITIVE,
        ):

            @seed(start)
            @settings(
                max_examples=n_each,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(operation.as_strategy(generation_mode=mode), CHOICES)
            def run(case: Any, choices: Mapping[str, Any]) -> None:
                sender.send(case, choices)

            run()
    return sender.statuses


def check(coordinator: HostileCoordinator, n_each: int, n_requests: int) -> None:
    start = SystemEntropy().below(1 << 32) if os.environ.get("SHOAL_FRESH_SEEDS") else 7
    print(f"seed: {start}")
    statuses = search(coordinator, n_each, start)
    print(f"statuses: {dict(sorted(statuses.items()))}")
    assert statuses.total() >= n_requests
    # It got past the door, and was refused for many reasons.
    assert {200, 201, 202, 204, 400, 401, 403, 404, 409, 410, 415} <= set(statuses)


def test_openapi_document_matches_1000_requests(coordinator: HostileCoordinator) -> None:
    check(coordinator, 27, 1_000)


@pytest.mark.soak
def test_openapi_document_matches_10000_requests(coordinator: HostileCoordinator) -> None:
    check(coordinator, 265, 10_000)
