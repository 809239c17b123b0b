"""Each route on a real service: responses, rejections, and no change after a rejection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from httpx2 import Response

from shoal.coordinator.scheduler import LEASE_SECONDS
from shoal.coordinator.store.base import StepResult, StudyOutcome
from shoal.errors import StoreError
from shoal.messages import codec
from shoal.messages.codec import MAX_BYTES
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from shoal.study.registry import PROTOCOLS
from shoal.transport.api import (
    CBOR,
    JSON,
    MAX_CONTROL_BYTES,
    RAW,
    STUDIES,
    Enrolment,
    MessagePage,
    Poll,
    QueuedMessage,
    SignedManifest,
    from_cbor,
    study_route,
    to_json,
)
from shoal.transport.signing import verify_manifest
from tests.support.http import (
    ANONML,
    DDML,
    MANIFESTS,
    PFDS,
    Coordinator,
    answer,
    coordinator,
    participant,
    read_problem,
    tables,
    ticket,
)

NOWHERE = "00" * 32
READ = ("", "manifest", "label", "board", "progress", "model")


@pytest.fixture
def c(tmp_path: Path) -> Iterator[Coordinator]:
    with coordinator(tmp_path, "anonml", "pfds", "ddml") as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """For requests that change nothing."""
    with coordinator(tmp_path_factory.mktemp("routes"), "anonml", "pfds", "ddml") as found:
        assert found.enrol(PFDS).status_code == 200
        yield found


def poll(c: Coordinator, **form: int) -> Response:
    return c.signed(PFDS, "mailbox", to_json(Poll(**form)))


def write(c: Coordinator, study: str, *messages: tuple[str | None, bytes]) -> None:
    """Write messages as a step of the aggregator does, under the lease of another worker."""
    now = int(c.clock.now().timestamp() * 1000)
    term = c.store.lease(study, "another worker", now, now + round(1000 * LEASE_SECONDS))
    assert term is not None
    assert c.store.save(study, term, StepResult(b"a state", messages=messages))


# reading


def test_list_studies_returns_summaries(c: Coordinator) -> None:
    listed = c.http.get(STUDIES).json()
    assert [study["digest"] for study in listed] == [ANONML, PFDS, DDML]
    assert [(study["protocol"], study["admission"]) for study in listed] == [
        ("anonml", None),
        ("pfds", None),
        ("ddml", "signed"),
    ]
    for study in listed:
        assert study == c.get(study["digest"]).json()
        manifest = MANIFESTS[study["protocol"]]
        assert (study["short"], study["title"], study["status"]) == (
            manifest.short_digest,
            manifest.study.title,
            "open",
        )
        assert (study["has_roster"], study["by_invitation"], study["reason"]) == (
            False,
            False,
            None,
        )


def test_get_manifest_returns_signed_manifest(c: Coordinator) -> None:
    found = c.get(ANONML, "manifest")
    assert found.headers["content-type"] == CBOR
    published = from_cbor(found.content, SignedManifest)
    assert published.manifest == MANIFESTS["anonml"].to_bytes()
    verify_manifest(published.key, MANIFESTS["anonml"].digest, published.signature)
    assert published.key == c.service.identity.public_key


def test_get_label_returns_json_or_text(c: Coordinator) -> None:
    manifest = MANIFESTS["anonml"]
    statement = make_plan(manifest.study, manifest.digest).make_statement(
        digest=manifest.short_digest
    )
    for accept in ("", "*/*", JSON, f"{JSON}, text/plain", "text/html"):
        found = c.get(ANONML, "label", headers={"accept": accept})
        assert (found.headers["content-type"], found.headers["vary"]) == (JSON, "Accept")
        assert found.json()["epsilon"] == statement.epsilon == 2.0
    for accept in ("text/plain", "Text/Plain; q=0.5", f"text/plain, {JSON}"):
        found = c.get(ANONML, "label", headers={"accept": accept})
        assert found.headers["content-type"] == "text/plain; charset=utf-8"
        assert found.text == f"{statement}\n"


def test_get_broadcasts_is_same_for_all(c: Coordinator) -> None:
    assert from_cbor(c.get(PFDS, "board").content, MessagePage) == MessagePage(
        letters=(), status="open"
    )
    write(c, PFDS, (None, b"to all"), ("holder-0", b"to one"), (None, b"to all again"))
    everything = from_cbor(c.get(PFDS, "board", params={"wait": 30}).content, MessagePage)
    assert [message.payload for message in everything.letters] == [b"to all", b"to all again"]
    later = from_cbor(
        c.get(PFDS, "board", params={"after": everything.letters[0].number}).content, MessagePage
    )
    assert later.letters == everything.letters[1:]


def test_get_model_before_and_after_end(c: Coordinator) -> None:
    assert read_problem(c.get(PFDS, "model")) == (409, "HOST-002")
    assert c.store.end(PFDS, StudyOutcome("done", result=b'{"weights": []}'))
    assert c.get(PFDS, "model").json() == {"weights": []}
    assert c.get(PFDS, "model").headers["content-type"] == JSON
    for study, ending in (
        (ANONML, StudyOutcome("failed", reason="Too few.")),
        (DDML, StudyOutcome("closed", reason="It was closed.")),
    ):
        assert c.store.end(study, ending)
        found = c.get(study, "model")
        assert read_problem(found) == (410, "HOST-002")
        assert found.json()["detail"] == ending.reason == c.get(study, "").json()["reason"]


def test_get_progress_rounds_counts(c: Coordinator) -> None:
    for i in range(11):
        c.enrol(ANONML, i)
    assert c.get(ANONML, "progress").json()["enrolled"] == 10


@pytest.mark.parametrize("what", READ)
def test_reading_unknown_study_returns_404(shared: Coordinator, what: str) -> None:
    for study in (NOWHERE, ANONML[:-1], ANONML.upper(), ANONML + "%0A", "..", "%2e%2e", "x"):
        assert read_problem(shared.get(study, what)) == (404, "HOST-001")
    for query in (
        "x=1",
        "after",
        "after=abc",
        "after=-1",
        "after=1&after=1",
        f"after={10**15}",
        "wait=31",
        "digest=1",
    ):
        assert read_problem(shared.get(ANONML, what, params=query)) == (400, "HOST-006")


# enrolling and leaving


def test_enrol_twice_returns_same_name(c: Coordinator) -> None:
    names = [c.enrol(PFDS, i).json() for i in (0, 1, 0)]
    assert names == [{"name": f"holder-{i}", "position": i, "issued": None} for i in (0, 1, 0)]
    assert c.enrol(ANONML).json()["position"] is None
    assert read_problem(c.enrol(ANONML, ticket="7f" * 32)) == (409, "ENROL-002")
    assert c.totals(PFDS)[0] == 2


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "MSG-002"),
        (b"null", "MSG-005"),
        (b"[]", "MSG-005"),
        (b'{"ticket": "x"}', "MSG-005"),
        (b'{"ticket": 1}', "MSG-005"),
        (b'{"invitation": false}', "MSG-005"),
        (b'{"unknown": 1}', "MSG-005"),
        (b'{"ticket": null, "ticket": null}', "MSG-002"),
        (b'{"ticket": NaN}', "MSG-002"),
        (b"[" * 10_000, "MSG-002"),
        (b"\xff\xfe", "MSG-002"),
        (b"{}", "MSG-005"),
    ],
)
def test_enrol_rejects_invalid_form(shared: Coordinator, body: bytes, code: str) -> None:
    assert read_problem(shared.signed(ANONML, "enrolments", body)) == (400, code)
    assert shared.totals(ANONML)[0] == 0


def test_enrol_needs_invitation(tmp_path: Path) -> None:
    with coordinator(tmp_path, "pfds", n_invitations=1) as c:
        (code,) = c.invitations
        assert (
            read_problem(c.enrol(PFDS))
            == read_problem(c.enrol(PFDS, invitation="x"))
            == (403, "ENROL-001")
        )
        assert c.enrol(PFDS, invitation=code).status_code == 200
        assert read_problem(c.enrol(PFDS, 1, invitation=code)) == (403, "ENROL-001")
        assert c.totals(PFDS)[0] == 1


def test_replayed_enrolment_does_not_undo_leave(c: Coordinator) -> None:
    body, route = to_json(Enrolment()), study_route(PFDS, "enrolments")
    caught = c.header(route, body, participant())
    assert c.post(PFDS, "enrolments", body, JSON, authorization=caught).status_code == 200
    assert c.signed(PFDS, "leave").status_code == 204
    assert read_problem(c.post(PFDS, "enrolments", body, JSON, authorization=caught)) == (
        401,
        "AUTH-005",
    )
    assert read_problem(c.message(tables())) == (403, "ENROL-001")
    assert c.enrol(PFDS).json()["name"] == "holder-0"


def test_leave_deletes_enrolment(c: Coordinator) -> None:
    c.enrol(PFDS)
    assert read_problem(c.signed(PFDS, "leave", b"{}")) == (413, "MSG-001")
    left = c.signed(PFDS, "leave", kind=None)
    assert (left.status_code, left.content) == (204, b"")
    assert read_problem(c.message(tables())) == (403, "ENROL-001")


# messages under a name


def test_message_is_accepted_once(c: Coordinator) -> None:
    c.enrol(PFDS)
    accepted = c.message(tables())
    assert (accepted.status_code, accepted.content) == (202, b"")
    assert c.message(tables()).status_code == 202
    assert read_problem(c.message(tables(1))) == (409, "HOST-005")
    assert c.totals(PFDS)[:2] == (1, 1)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "MSG-002"),
        (b"\xff", "MSG-002"),
        (tables()[:-1], "MSG-002"),
        (tables() + b"\x00", "MSG-003"),
        (b"\x9f" * 5_000, "MSG-002"),
        (b"\x81" * 5_000, "MSG-002"),
        (b"\xbf\xff", "MSG-002"),
        (
            codec.dumps({"type": "pfds.tables", "version": 9, "study": bytes(32), "body": {}}),
            "MSG-004",
        ),
        (tables(manifest=MANIFESTS["anonml"]), "MSG-006"),
        (answer(), "MSG-004"),
    ],
)
def test_invalid_message_is_rejected(shared: Coordinator, body: bytes, code: str) -> None:
    before = shared.totals(PFDS)[2].get(code, 0)
    assert read_problem(shared.message(body)) == (400, code)
    assert shared.totals(PFDS)[:2] == (1, 0)
    assert shared.totals(PFDS)[2][code] == before + 1


def test_message_on_wrong_route_is_rejected(c: Coordinator) -> None:
    for study in (ANONML, PFDS):
        c.enrol(study)
    assert read_problem(c.message(answer(), study=ANONML)) == (400, "PROTO-003")
    assert c.post(PFDS, "submissions", tables(), CBOR).status_code == 202
    assert (c.totals(ANONML)[1:], c.totals(PFDS)[1:]) == (
        (0, {"PROTO-003": 1}),
        (0, {"PROTO-003": 1}),
    )


def test_message_after_end_is_rejected(c: Coordinator) -> None:
    c.enrol(PFDS)
    c.store.end(PFDS, StudyOutcome("closed"))
    assert read_problem(c.message(tables())) == (410, "HOST-002")


@pytest.mark.parametrize(
    ("what", "kind"), [("messages", CBOR), ("mailbox", JSON), ("enrolments", JSON)]
)
def test_bodies_of_wrong_size_or_type_are_rejected(c: Coordinator, what: str, kind: str) -> None:
    c.enrol(PFDS)
    limit = MAX_BYTES if what == "messages" else MAX_CONTROL_BYTES
    assert read_problem(c.post(PFDS, what, bytes(limit + 1), kind)) == (413, "MSG-001")
    assert (
        read_problem(
            c.http.post(
                study_route(PFDS, what),
                content=iter([bytes(limit), b"+"]),
                headers={"content-type": kind},
            )
        )[0]
        == 413
    )
    for other in ("text/plain", "application/x-www-form-urlencoded", RAW, None):
        found = c.signed(PFDS, what, b"{}", other)
        assert read_problem(found) == (415, "HOST-006")
        assert found.headers["accept"] == kind
    assert read_problem(
        c.http.post(study_route(PFDS, what) + "?x=1", content=b"{}", headers={"content-type": kind})
    ) == (400, "HOST-006")
    assert read_problem(c.signed(NOWHERE, what, b"{}", kind)) == (404, "HOST-001")
    assert c.totals(PFDS) == (1, 0, {})


# the mailbox


def test_mailbox_deletes_acknowledged_messages(c: Coordinator) -> None:
    c.enrol(PFDS, 0)
    c.enrol(PFDS, 1)
    write(c, PFDS, (None, b"to all"), ("holder-0", b"to one"), ("holder-1", b"to another"))
    found = from_cbor(poll(c, wait_seconds=30).content, MessagePage)
    assert [message.payload for message in found.letters] == [b"to all", b"to one"]
    assert from_cbor(poll(c).content, MessagePage) == found
    last = found.letters[-1].number
    assert from_cbor(poll(c, after=last).content, MessagePage) == MessagePage(
        letters=(), status="open"
    )
    assert from_cbor(poll(c).content, MessagePage) == MessagePage(
        letters=(QueuedMessage(number=found.letters[0].number, payload=b"to all"),),
        status="open",
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"after": -1}',
        b'{"after": false}',
        b'{"after": 1.0}',
        b'{"after": 1' + b"0" * 30 + b"}",
        b'{"wait_seconds": 31}',
        b"7",
    ],
)
def test_invalid_poll_is_rejected(shared: Coordinator, body: bytes) -> None:
    assert read_problem(shared.signed(PFDS, "mailbox", body)) == (400, "MSG-005")


# anonymous submissions


def test_submission_gets_same_response_for_every_outcome(c: Coordinator) -> None:
    c.enrol(ANONML)
    sent = {
        "accepted": (answer(), CBOR),
        "repeated": (answer(), CBOR),
        "HOST-005": (answer(report=b"\x01"), CBOR),
        "AUTH-002": (answer(1), CBOR),
        "MSG-001": (bytes((1 << 22) + 1), CBOR),
        "MSG-002": (b"\x9f" * 100, CBOR),
        "MSG-006": (answer(study=bytes(32)), CBOR),
        "no type": (answer(question=1), None),
        "another type": (answer(question=2), "text/plain"),
        "nothing": (b"", None),
    }
    answers = [c.post(ANONML, "submissions", body, kind) for body, kind in sent.values()]
    answers.append(
        c.http.post(study_route(ANONML, "submissions") + "?x=1", content=answer(question=3))
    )
    answers.append(
        c.post(
            ANONML, "submissions", answer(question=4), CBOR, authorization="Shoal x", cookie="a=b"
        )
    )
    answers.append(
        c.http.post(study_route(ANONML, "submissions"), content=iter([bytes(1 << 22), b"+"]))
    )
    _, accepted, refused = c.totals(ANONML)
    assert accepted == 5
    assert refused == {"HOST-005": 1, "AUTH-002": 1, "MSG-001": 2, "MSG-002": 2, "MSG-006": 1}
    c.store.end(ANONML, StudyOutcome("closed"))
    answers.append(c.post(ANONML, "submissions", answer(question=5), CBOR))
    assert {(found.status_code, found.content, str(found.headers)) for found in answers} == {
        (202, b"", str(answers[0].headers))
    }
    assert c.totals(ANONML)[1] == 5


def test_submission_to_unknown_study_returns_404(c: Coordinator) -> None:
    assert read_problem(c.post(NOWHERE, "submissions", answer(), CBOR)) == (404, "HOST-001")


def test_submission_is_not_acknowledged_if_store_fails(
    c: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for study in (ANONML, PFDS):
        c.enrol(study)

    def broken(*_: object) -> None:
        raise StoreError("STORE-001", f"The disk with {ticket().hex()} is full.")

    monkeypatch.setattr(c.store, "accept", broken)
    for found in (c.post(ANONML, "submissions", answer(), CBOR), c.message(tables())):
        assert read_problem(found) == (503, "HOST-004")
        assert int(found.headers["retry-after"]) > 0
        assert "disk" not in found.text
        assert ticket().hex() not in found.text
    monkeypatch.setattr(c.store, "ping", broken)
    assert read_problem(c.http.get("/readyz")) == (503, "HOST-004")
    assert c.http.get("/healthz").status_code == 200
    monkeypatch.undo()
    assert c.post(ANONML, "submissions", answer(), CBOR).status_code == 202
    assert c.totals(ANONML)[1] == 1


def test_draw_and_update_exist_only_in_ddml(c: Coordinator) -> None:
    for what in ("draw", "update"):
        for study in (ANONML, PFDS, NOWHERE, "x"):
            assert read_problem(c.post(study, what, b"", RAW)) == (404, "HOST-001")
    assert c.post(DDML, "draw").status_code == 200


def test_anonymous_update_gets_same_response_for_every_outcome(tmp_path: Path) -> None:
    study = MANIFESTS["ddml"].study
    assert study.ddml is not None
    is_open = Manifest(
        study.model_copy(update={"ddml": study.ddml.model_copy(update={"admission": "open"})})
    )
    with coordinator(tmp_path, "anonml") as c:
        assert c.publish(is_open).status_code == 201
        update, submission = (
            c.post(is_open.digest.hex(), "update", b"rubbish"),
            c.post(ANONML, "submissions", b"rubbish"),
        )
        assert (update.status_code, update.content, update.headers) == (
            202,
            b"",
            submission.headers,
        )


# the analyst


def test_publish_study_returns_summary(tmp_path: Path) -> None:
    with coordinator(tmp_path) as c:
        assert c.http.get(STUDIES).json() == []
        found = c.publish(MANIFESTS["pfds"], params={"patience": 60})
        assert (found.status_code, found.headers["location"]) == (201, study_route(PFDS))
        assert found.json() == c.get(PFDS).json()
        assert c.publish(MANIFESTS["pfds"], params={"patience": 1}).status_code == 201
        record = c.store.find_study(PFDS)
        assert record is not None
        assert record.phase_timeout == 60_000
        assert len(c.http.get(STUDIES).json()) == 1


def test_publish_study_rejects_unservable_study(c: Coordinator) -> None:
    study = MANIFESTS["anonml"].study
    shuffled = Manifest(study.model_copy(update={"trust": "shuffled", "title": "Another"}))
    found = c.publish(shuffled)
    assert found.status_code == 400
    for query in ("patience=0", "patience=-1", "patience=1e9", f"patience={10**10}", "invite=1"):
        assert read_problem(c.publish(MANIFESTS["anonml"], params=query)) == (400, "HOST-006")
    headers = {"authorization": f"Bearer {c.key}", "content-type": CBOR}
    for body in (b"", b"\xff", MANIFESTS["anonml"].to_bytes()[:-1]):
        assert read_problem(c.http.post(STUDIES, content=body, headers=headers)) == (
            400,
            "MANIFEST-001",
        )
    assert read_problem(
        c.http.post(STUDIES, content=b"{}", headers={**headers, "content-type": JSON})
    ) == (415, "HOST-006")
    assert read_problem(c.http.post(STUDIES, content=bytes(MAX_BYTES + 1), headers=headers)) == (
        413,
        "MSG-001",
    )
    assert len(c.http.get(STUDIES).json()) == 3


def test_body_is_not_read_without_analyst_key(c: Coordinator) -> None:
    """One who has no key learns nothing about limits and types."""
    assert read_problem(c.http.post(STUDIES, content=bytes(MAX_BYTES + 1))) == (401, "AUTH-001")


def test_close_study_ends_it(c: Coordinator) -> None:
    headers = {"authorization": f"Bearer {c.key}"}
    assert read_problem(c.http.post(study_route(NOWHERE, "close"), headers=headers)) == (
        404,
        "HOST-001",
    )
    for _ in range(2):
        assert c.http.post(study_route(PFDS, "close"), headers=headers).status_code == 204
    assert c.get(PFDS).json()["status"] == "closed"
    assert (
        from_cbor(c.get(PFDS, "board", params={"wait": 30}).content, MessagePage).status == "closed"
    )
    assert c.get(ANONML).json()["status"] == "open"


def test_waiting_reader_gets_new_message(tmp_path: Path) -> None:
    """AnonML begins with a broadcast; a waiting reader gets it."""
    with coordinator(tmp_path, "anonml", is_stepped=True) as c:
        found = from_cbor(c.get(ANONML, "board", params={"wait": 30}).content, MessagePage)
        assert [message.number for message in found.letters] == [1]
        asked = codec.decode(
            found.letters[0].payload,
            PROTOCOLS["anonml"].messages,
            MANIFESTS["anonml"].digest,
        )
        assert asked.type_name == "anonml.ask"
        assert participant().public_key not in found.letters[0].payload
