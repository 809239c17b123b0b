"""Admission: each number of a ticket, token or key counts once; checks share transactions."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shoal.clock import ManualClock, to_milliseconds
from shoal.coordinator.ddml.admission import (
    Admission,
    SignedAdmission,
    TicketAdmission,
    TokenAdmission,
)
from shoal.coordinator.enrolment import CoordinatorKeys
from shoal.coordinator.store.base import (
    NewEnrolment,
    StudyOutcome,
    StudyRecord,
    SubmissionName,
    SubmissionOutcome,
)
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.crypto.credentials.issuance import Credential
from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import RemoteProtocolError
from shoal.study.delivery import TokenSlots, compute_scope, hash_pseudonym
from shoal.transport.api import study_route
from shoal.transport.signing import sign_request
from tests.support.credentials import member, tokened
from tests.support.ddml import make_manifest, published

STRANGE = (
    "",
    "?",
    "?number",
    "?number=",
    "?number=2",
    "?number=-1",
    "?number=1.0",
    "?number=false",
    "?number=1&number=1",
    "?number=1&x=1",
)
STRANGE += (
    "?x=1&number=1",
    "?Number=1",
    "?number=1 ",
    "?number=\u0661",
    f"?number={'9' * 400}",
    "?number=%31",
)


class Counting(SqliteStore):
    """A store that notes how many names each transaction had."""

    def use_names(
        self, study: str, names: Sequence[SubmissionName]
    ) -> tuple[SubmissionOutcome, ...]:
        self.sizes = [*getattr(self, "sizes", []), len(names)]
        return super().use_names(study, names)


async def let_in(admission: Admission, target: str, body: bytes, credential: str) -> str:
    """What becomes of an update at the door."""
    try:
        named = await admission.check(target, body, credential)
        assert named is not None
        await admission.use(named)
    except RemoteProtocolError as error:
        return error.code
    return "in"


def test_concurrent_checks_return_their_own_outcomes(tmp_path: Path) -> None:
    entropy, clock = SeededEntropy(1), ManualClock()
    issued, unknown = [entropy.bytes(32) for _ in range(3)], entropy.bytes(32)
    with Counting(tmp_path / "coordinator.db") as store, ThreadPoolExecutor(1) as executor:
        record = published(store, make_manifest("token"), clock)
        for ticket in issued:
            store.enrol(
                record.digest,
                NewEnrolment(
                    Identity.from_seed(entropy.bytes(32)).public_key,
                    ticket=hashlib.sha256(ticket).digest(),
                ),
            )

        async def check(tickets: TicketAdmission, ticket: bytes, number: int, body: bytes) -> str:
            return await let_in(tickets, "", body, f"{ticket.hex()} {number}")

        async def main() -> tuple[list[str], list[str]]:
            tickets = TicketAdmission(store, record.digest, 2, executor)
            asked = [
                (issued[0], 0, b"a"),
                (unknown, 0, b"a"),
                (issued[0], 0, b"b"),
                (issued[0], 0, b"a"),
                (issued[0], 1, b"b"),
            ]
            asked += [(unknown, 1, b"c"), (issued[1], 0, b"c"), (issued[2], 2, b"d")]
            first = await asyncio.gather(*(check(tickets, *one) for one in asked))
            store.end(record.digest, StudyOutcome("closed", reason="Enough."))
            return first, [await check(tickets, issued[1], 1, b"d")]

        outcomes, late = asyncio.run(main())
    assert outcomes == ["in", "AUTH-002", "HOST-005", "in", "in", "AUTH-002", "in", "AUTH-001"]
    assert late == ["HOST-002"]
    # All that came together, then one that came late.
    assert store.sizes == [7, 1]


def test_token_admits_allowed_number_of_updates(tmp_path: Path) -> None:
    manifest = tokened(make_manifest("token"))
    study, slots = manifest.digest.hex(), TokenSlots(manifest)
    members, stranger = (
        [member(manifest, i) for i in range(3)],
        member(manifest, 0, CoordinatorKeys(bytes(32))),
    )

    def shown(who: Credential, number: int, body: bytes, *, slot: int | None = None) -> str:
        context = slots.encode_context(number if slot is None else slot)
        return f"{who.mint(context, body, SystemEntropy()).hex()} {number}"

    async def main(
        store: Counting, executor: ThreadPoolExecutor, verifying: ThreadPoolExecutor
    ) -> tuple[list[str], list[str]]:
        tokens = TokenAdmission(store, study, 2, executor, manifest, verifying)
        assert tokens.header == b"shoal-token" and tokens.is_anonymous
        good = shown(members[0], 0, b"a")
        asked = [
            (b"a", good),
            (b"a", good),
            (b"a", shown(members[0], 0, b"a")),
            (b"b", shown(members[0], 0, b"b")),
        ]
        asked += [(b"b", shown(members[0], 1, b"b")), (b"a", shown(members[1], 0, b"a"))]
        bad = [
            (b"b", good),
            (b"a", shown(members[2], 1, b"a", slot=0)),
            (b"a", shown(stranger, 0, b"a")),
        ]
        none = [
            (b"a", ""),
            (b"a", good.upper()),
            (b"a", good + " "),
            (b"a", good[2:]),
            (b"a", shown(members[2], 2, b"a")),
        ]
        first = [await let_in(tokens, "", *one) for one in (*asked, *bad, *none)]
        together = [(b"c", shown(members[2], 0, b"c")), (b"a", good), *bad]
        return first, await asyncio.gather(*(let_in(tokens, "", *one) for one in together))

    with (
        Counting(tmp_path / "coordinator.db") as store,
        ThreadPoolExecutor(1) as executor,
        ThreadPoolExecutor(1) as verifying,
    ):
        store.publish(StudyRecord(study, manifest.to_bytes(), 0, 1, scope=compute_scope(manifest)))
        first, together = asyncio.run(main(store, executor, verifying))
        names = store.list_submissions(study)
    assert first == [
        "in",
        "in",
        "in",
        "HOST-005",
        "in",
        "in",
        *["TOKEN-001"] * 3,
        *["AUTH-001"] * 5,
    ]
    assert together == ["in", "in", *["TOKEN-001"] * 3]
    shown_by = [(members[0], 0), (members[0], 1), (members[1], 0), (members[2], 0)]
    assert names == tuple(
        sorted(
            hash_pseudonym(who.compute_pseudonym(slots.encode_context(number)))
            for who, number in shown_by
        )
    )


def test_signature_admits_allowed_number_of_updates(tmp_path: Path) -> None:
    entropy, clock = SeededEntropy(2), ManualClock()
    anna, bert, stranger = (Identity.from_seed(entropy.bytes(32)) for _ in range(3))
    with SqliteStore(tmp_path / "coordinator.db") as store, ThreadPoolExecutor(1) as executor:
        record = published(store, make_manifest("signed"), clock)
        for one in (anna, bert):
            store.enrol(record.digest, NewEnrolment(one.public_key))

        async def main() -> list[str]:
            # Two workers, which share the store alone.
            workers = [
                SignedAdmission(
                    store, record.digest, 2, executor, lambda: to_milliseconds(clock.now())
                )
                for _ in range(2)
            ]

            async def send(who: Identity, query: str, body: bytes, worker: int = 0) -> str:
                target = f"{study_route(record.digest, 'update')}{query}"
                return await let_in(
                    workers[worker],
                    target,
                    body,
                    sign_request(who, "POST", target, body, to_milliseconds(clock.now()), entropy),
                )

            return [
                await send(anna, "?number=0", b"a"),
                await send(anna, "?number=0", b"a", worker=1),
                await send(anna, "?number=00", b"a"),
                await send(anna, "?number=0", b"b", worker=1),
                await send(anna, "?number=1", b"b"),
                await send(bert, "?number=0", b"b"),
                await send(stranger, "?number=0", b"c"),
                *[await send(anna, query, b"c") for query in STRANGE],
            ]

        outcomes = asyncio.run(main())
        assert outcomes == [
            "in",
            "in",
            "in",
            "HOST-005",
            "in",
            "in",
            "ENROL-001",
            *["HOST-006"] * len(STRANGE),
        ]
        store.end(record.digest, StudyOutcome("closed", reason="Enough."))
        assert asyncio.run(main()) == ["HOST-002"] * 6 + ["ENROL-001", *["HOST-006"] * len(STRANGE)]
