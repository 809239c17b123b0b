"""From a manifest and a table to a peer, for every protocol; and what does not fit, in a sentence that names the column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from participants import manifest_of, table_of
from shoal.crypto.roster import Identity
from shoal.errors import LocalProtocolError, RemoteProtocolError, SpecError
from shoal.participant.peers import encode, peer_of
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.ddml.peer import DDMLPeer
from shoal.protocols.pfds.reader import Reader
from shoal.protocols.pfds.sharing_peer import SharingPeer, SharingReader
from shoal.protocols.pfds.summing_peer import SummingPeer
from shoal.protocols.pfds.tables_peer import TablesPeer
from shoal.protocols.sdq.peer import SDQPeer
from shoal.study.manifest import Manifest

PEOPLE = [Identity.from_seed(bytes([i]) * 32) for i in range(4)]
KEYS = tuple(one.public for one in PEOPLE[:3])
PFDS = {"n_holders": 3}
SDQ = {"n_databases": 3}

CASES: dict[str, tuple[Manifest, type[Any]]] = {
    "anonml": (manifest_of("anonml"), AnonMLPeer),
    "ddml": (manifest_of("ddml", ddml={"n_instances": 2}), DDMLPeer),
    "sdq": (manifest_of("sdq", 3, KEYS, sdq=SDQ), SDQPeer),
    "sdq, local": (manifest_of("sdq", 3, KEYS, variant="paper", trust="local", sdq=SDQ), SDQPeer),
    "pfds": (manifest_of("pfds", pfds=PFDS), TablesPeer),
    "pfds, roster": (manifest_of("pfds", 3, KEYS, pfds=PFDS), TablesPeer),
    "pfds, sums": (manifest_of("pfds", 3, KEYS, trust="secure-sum", pfds=PFDS), SummingPeer),
    "pfds, paper": (manifest_of("pfds", variant="paper", pfds=PFDS), SharingPeer),
    "pfds, paper, roster": (manifest_of("pfds", 3, KEYS, variant="paper", pfds=PFDS), SharingPeer),
}


@pytest.mark.parametrize("name", CASES)
def test_every_protocol_has_its_peer(name: str) -> None:
    manifest, kind = CASES[name]
    peer = peer_of(manifest, table_of(1), PEOPLE[1], ticket=bytes(32), position=1)
    assert type(peer) is kind
    assert peer.study == manifest.digest


def test_a_place_is_that_of_the_key_or_of_the_enrolment() -> None:
    table = table_of(5)
    by_key = peer_of(CASES["pfds, paper, roster"][0], table, PEOPLE[2], position=0)
    by_seat = peer_of(CASES["pfds, paper"][0], table, PEOPLE[3], position=0)
    assert isinstance(by_key, SharingPeer)
    assert isinstance(by_seat, SharingPeer)
    assert (by_key.name, by_seat.name) == ("site-2", "holder-0")
    assert peer_of(CASES["sdq"][0], table, PEOPLE[2]).member.me == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["sdq", "pfds, roster", "pfds, sums"])
def test_a_key_that_is_not_on_the_roster_cannot_answer(name: str) -> None:
    with pytest.raises(SpecError, match="MANIFEST-002") as error:
        peer_of(CASES[name][0], table_of(5), PEOPLE[3], position=0)
    assert PEOPLE[3].public.hex() in str(error.value)


def test_a_seat_that_no_holder_has_is_the_coordinators_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="NET-002"):
        peer_of(CASES["pfds"][0], table_of(5), PEOPLE[0], position=3)
    with pytest.raises(LocalProtocolError, match="PROTO-001"):
        peer_of(CASES["pfds"][0], table_of(5), PEOPLE[0])


def test_readers() -> None:
    plus, paper = CASES["pfds"][0], CASES["pfds, paper"][0]
    assert isinstance(peer_of(plus, None, PEOPLE[0], role="reader"), Reader)
    assert isinstance(peer_of(plus, table_of(5), PEOPLE[0], role="reader"), Reader)
    assert isinstance(peer_of(paper, None, PEOPLE[0], role="reader"), SharingReader)
    with pytest.raises(SpecError, match="A study of anonml has no readers"):
        peer_of(CASES["anonml"][0], None, PEOPLE[0], role="reader")


def test_data_that_does_not_fit_is_a_sentence_with_the_column() -> None:
    manifest, table = CASES["pfds"][0], table_of(5)
    with pytest.raises(SpecError, match="The data has no column heat"):
        encode(manifest, {name: column for name, column in table.items() if name != "heat"})
    with pytest.raises(SpecError, match="heat: row 2"):
        encode(manifest, {**table, "heat": np.array([1.0, 99.0, 1.0, 1.0, 1.0])})
    with pytest.raises(SpecError, match="play: row 1"):
        encode(manifest, {**table, "play": np.array([None, *table["play"][1:]], object)})
    with pytest.raises(SpecError, match="DATA-006"):
        peer_of(manifest, None, PEOPLE[0], position=0)
    with pytest.raises(SpecError, match="The data has 5 rows; in this study everyone has one"):
        encode(CASES["anonml"][0], table)


def test_of_a_person_no_more_rows_are_used_than_the_study_says() -> None:
    manifest = manifest_of("pfds", pfds=PFDS, data={"person": "who", "max_rows_per_person": 2})
    table = {**table_of(5), "who": np.array(["a", "a", "a", "b", "b"], object)}
    columns, labels = encode(manifest, table)
    assert len(labels) == len(columns["wind"]) == 4
    with pytest.raises(SpecError, match="who"):
        encode(manifest, table_of(5))
