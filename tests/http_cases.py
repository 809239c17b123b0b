"""A whole coordinator behind a client that speaks HTTP to it, in one process: real office, real store, a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from httpx2 import Response
from starlette.testclient import TestClient

from shoal.clock import ManualClock
from shoal.coordinator.app import make_app
from shoal.coordinator.models import open_models
from shoal.coordinator.office import Office
from shoal.coordinator.publishing import draw_invitations, first_start, publish
from shoal.coordinator.stepping import LEASE_SECONDS
from shoal.coordinator.store.base import Store
from shoal.coordinator.store.opening import open_store
from shoal.crypto.roster import Identity
from shoal.entropy import SeededEntropy
from shoal.messages import codec
from shoal.messages.base import Array
from shoal.protocols.anonml.messages import Answer
from shoal.protocols.pfds.messages import Tables
from shoal.study.load import load
from shoal.study.manifest import Manifest
from shoal.transport.forms import Enrolment, to_json
from shoal.transport.routes import CBOR, JSON, STUDIES, study_route
from shoal.transport.signing import sign

TEMPLATES = Path(__file__).parents[1] / "src/shoal/study/templates"

MANIFESTS = {name: Manifest(load(TEMPLATES / f"{name}.toml")) for name in ("anonml", "pfds", "ddml")}
ANONML, PFDS, DDML = (MANIFESTS[name].digest.hex() for name in ("anonml", "pfds", "ddml"))


def participant(i: int = 0) -> Identity:
    return Identity.from_seed(SeededEntropy("participants").spawn(i).bytes(32))


def ticket(i: int = 0) -> bytes:
    return SeededEntropy("tickets").spawn(i).bytes(32)


def tables(seed: int = 0, manifest: Manifest = MANIFESTS["pfds"]) -> bytes:
    """A message that is a holder's to send; what it says does not fit, and is for the aggregator to see."""
    return codec.encode(Tables(study=manifest.digest, counts=Array.of(np.array([seed], np.int64))))


def answer(i: int = 0, **changes: Any) -> bytes:
    fields = {"study": MANIFESTS["anonml"].digest, "ticket": ticket(i), "phase": 0, "question": 0, "report": b"\x00"}
    return codec.encode(Answer(**{**fields, **changes}))


@dataclass
class Coordinator:
    """What tests do to a coordinator, and what they look at afterwards."""

    http: TestClient
    office: Office
    store: Store
    clock: ManualClock
    key: str
    invitations: tuple[str, ...] = ()
    entropy: SeededEntropy = field(default_factory=lambda: SeededEntropy("nonces"))

    def call(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run something of the office where the office runs."""
        assert self.http.portal is not None
        return self.http.portal.call(work, *arguments)

    def get(self, study: str, what: str = "", **options: Any) -> Response:
        return self.http.get(study_route(study, what), **options)

    def header(self, target: str, body: bytes, who: Identity, method: str = "POST", late: float = 0) -> str:
        time = int((self.clock.now().timestamp() - late) * 1000)
        return sign(who, method, target, body, time, self.entropy)

    def post(self, study: str, what: str, body: bytes = b"", kind: str | None = None, **headers: str) -> Response:
        given = {**({"content-type": kind} if kind else {}), **headers}
        return self.http.post(study_route(study, what), content=body, headers=given)

    def signed(self, study: str, what: str, body: bytes = b"", kind: str | None = JSON, who: Identity | None = None) -> Response:
        header = self.header(study_route(study, what), body, who or participant())
        return self.post(study, what, body, kind, authorization=header)

    def enrol(self, study: str, i: int = 0, **form: Any) -> Response:
        if study == ANONML:
            form = {"ticket": ticket(i).hex(), **form}
        return self.signed(study, "enrolments", to_json(Enrolment(**form)), who=participant(i))

    def message(self, body: bytes, i: int = 0, study: str = PFDS) -> Response:
        return self.signed(study, "messages", body, CBOR, participant(i))

    def publish(self, manifest: Manifest, **options: Any) -> Response:
        headers = {"authorization": f"Bearer {self.key}", "content-type": CBOR}
        return self.http.post(STUDIES, content=manifest.to_bytes(), headers=headers, **options)

    def totals(self, study: str) -> tuple[int, int, dict[str, int]]:
        """Enrolled, accepted and refused, with all that the office has counted so far."""
        self.call(self.office.progress, study)
        found = self.store.totals(study)
        return found.enrolled, found.accepted, dict(found.refused)


@contextmanager
def coordinator(folder: Path, *studies: str, n_invitations: int = 0, is_stepped: bool = False) -> Iterator[Coordinator]:
    """A coordinator with some studies of `MANIFESTS`. Unless it steps them, what is accepted stays as it came."""
    url, clock, entropy = f"sqlite:{folder / 'store.db'}", ManualClock(), SeededEntropy("office")
    with open_store(url) as store, open_models(None, url) as models:
        _, key = first_start(store, entropy)
        assert key is not None
        invitations = draw_invitations(n_invitations, entropy)
        for name in studies:
            publish(store, MANIFESTS[name], int(clock.now().timestamp() * 1000), invitations=invitations)
        office = Office(store, models, clock, entropy, "the only worker")
        with TestClient(make_app(office), raise_server_exceptions=True) as http:
            found = Coordinator(http, office, store, clock, key, invitations)
            if not is_stepped:
                # The lease is somebody else's, who is alive: it ends long after a test does.
                for name in studies:
                    digest = MANIFESTS[name].digest.hex()
                    now = int(clock.now().timestamp() * 1000)
                    assert store.lease(digest, "another worker", now, now + round(1000 * LEASE_SECONDS)) is not None
            found.call(office.start)
            try:
                yield found
            finally:
                found.call(office.stop)


def problem_of(answer: Response) -> tuple[int, str]:
    """Status and code; all that a problem must be is checked."""
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert found["status"] == answer.status_code
    assert found["title"]
    return answer.status_code, found["code"]
