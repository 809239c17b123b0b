"""Study handles: peers of every protocol, and data that does not fit the study."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.crypto.identity import Identity
from shoal.data.schema import Columns
from shoal.errors import LocalProtocolError, RemoteProtocolError, SpecError
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.ddml.peer import DDMLPeer
from shoal.protocols.machines import Peer
from shoal.protocols.pfds.paper.peer import PaperPeer, PaperReadOnlyPeer
from shoal.protocols.pfds.peer import LocalPeer, ReadOnlyPeer, SecureSumPeer
from shoal.protocols.sdq.peer import SDQPeer
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.study.protocol import EncodedRows, Seat
from shoal.study.validation import parse_content
from tests.support.participants import make_manifest, make_table

PEOPLE = [Identity.from_seed(bytes([i]) * 32) for i in range(4)]
KEYS = tuple(one.public_key for one in PEOPLE[:3])
PFDS = {"n_holders": 3}
SDQ = {"n_databases": 3}

CASES: dict[str, tuple[Manifest, type[Any]]] = {
    "anonml": (make_manifest("anonml"), AnonMLPeer),
    "ddml": (make_manifest("ddml", ddml={"n_instances": 2}), DDMLPeer),
    "sdq": (make_manifest("sdq", 3, KEYS, sdq=SDQ), SDQPeer),
    "sdq, local": (make_manifest("sdq", 3, KEYS, variant="paper", trust="local", sdq=SDQ), SDQPeer),
    "pfds": (make_manifest("pfds", pfds=PFDS), LocalPeer),
    "pfds, roster": (make_manifest("pfds", 3, KEYS, pfds=PFDS), LocalPeer),
    "pfds, sums": (make_manifest("pfds", 3, KEYS, trust="secure-sum", pfds=PFDS), SecureSumPeer),
    "pfds, paper": (make_manifest("pfds", variant="paper", pfds=PFDS), PaperPeer),
    "pfds, paper, roster": (make_manifest("pfds", 3, KEYS, variant="paper", pfds=PFDS), PaperPeer),
}


def encode_rows(manifest: Manifest, table: Columns) -> EncodedRows:
    return StudyHandle(manifest).encode_rows(table)


def make_peer(
    manifest: Manifest, table: Columns | None, identity: Identity, **seat: Any
) -> Peer[Any]:
    """Return the peer of a participant with a table."""
    study = StudyHandle(manifest)
    rows = None if table is None else study.encode_rows(table)
    return study.make_peer(rows, Seat(identity, **seat))


@pytest.mark.parametrize("name", CASES)
def test_make_peer_returns_peer_of_protocol(name: str) -> None:
    manifest, kind = CASES[name]
    peer = make_peer(manifest, make_table(1), PEOPLE[1], ticket=bytes(32), position=1)
    assert type(peer) is kind
    assert peer.study == manifest.digest


def test_make_peer_takes_position_from_roster_or_enrolment() -> None:
    table = make_table(5)
    by_key = make_peer(CASES["pfds, paper, roster"][0], table, PEOPLE[2], position=0)
    by_seat = make_peer(CASES["pfds, paper"][0], table, PEOPLE[3], position=0)
    assert isinstance(by_key, PaperPeer)
    assert isinstance(by_seat, PaperPeer)
    assert (by_key.name, by_seat.name) == ("site-2", "holder-0")
    assert make_peer(CASES["sdq"][0], table, PEOPLE[2]).member.me == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["sdq", "pfds, roster", "pfds, sums"])
def test_make_peer_rejects_key_outside_roster(name: str) -> None:
    with pytest.raises(SpecError, match="MANIFEST-002") as error:
        make_peer(CASES[name][0], make_table(5), PEOPLE[3], position=0)
    assert PEOPLE[3].public_key.hex() in str(error.value)


def test_make_peer_rejects_unknown_position() -> None:
    with pytest.raises(RemoteProtocolError, match="NET-002"):
        make_peer(CASES["pfds"][0], make_table(5), PEOPLE[0], position=3)
    with pytest.raises(LocalProtocolError, match="PROTO-001"):
        make_peer(CASES["pfds"][0], make_table(5), PEOPLE[0])


def test_make_peer_returns_reader_only_if_study_has_readers() -> None:
    plus, paper = CASES["pfds"][0], CASES["pfds, paper"][0]
    assert isinstance(make_peer(plus, None, PEOPLE[0], is_reader=True), ReadOnlyPeer)
    assert isinstance(make_peer(plus, make_table(5), PEOPLE[0], is_reader=True), ReadOnlyPeer)
    assert isinstance(make_peer(paper, None, PEOPLE[0], is_reader=True), PaperReadOnlyPeer)
    with pytest.raises(SpecError, match="A study of anonml has no readers"):
        make_peer(CASES["anonml"][0], None, PEOPLE[0], is_reader=True)


def make_strict(manifest: Manifest) -> Manifest:
    """Return the same study, which refuses data that does not fit."""
    content = {**manifest.study.to_content(), "strict": True}
    return replace(manifest, study=parse_content(content))


def test_strict_study_rejects_data_outside_schema_and_names_column() -> None:
    manifest, table = make_strict(CASES["pfds"][0]), make_table(5)
    with pytest.raises(SpecError, match="heat: row 2"):
        encode_rows(manifest, {**table, "heat": np.array([1.0, 99.0, 1.0, 1.0, 1.0])})
    with pytest.raises(SpecError, match="play: row 1"):
        encode_rows(manifest, {**table, "play": np.array([None, *table["play"][1:]], object)})


def test_encode_rows_rejects_tables_of_other_form() -> None:
    manifest, table = CASES["pfds"][0], make_table(5)
    with pytest.raises(SpecError, match="The data has no column heat"):
        encode_rows(manifest, {name: column for name, column in table.items() if name != "heat"})
    with pytest.raises(SpecError, match="DATA-006"):
        make_peer(manifest, None, PEOPLE[0], position=0)
    with pytest.raises(
        SpecError, match="The data has 5 rows; this study takes one row from each person"
    ):
        encode_rows(CASES["anonml"][0], table)


@pytest.mark.parametrize("name", [name for name in CASES if name != "anonml"])
def test_row_that_does_not_fit_does_not_keep_holder_out(name: str) -> None:
    """Otherwise one row of many is visible to everyone: its holder cannot take part."""
    manifest, table = CASES[name][0], make_table(5)
    table["heat"] = np.array([1.0, 99.0, -5.0, 1.0, 1.0])
    table["wind"] = np.array([*table["wind"][:4], "none"], object)
    table["play"] = np.array([*table["play"][:3], "maybe", "yes"], object)
    fitted = StudyHandle(manifest).fit_rows(table)
    assert fitted.columns["heat"].tolist() == [1.0, 40.0, 0.0]
    assert fitted.changed == {"heat": 2} and fitted.n_left_out == 2
    assert fitted.unusable == {"wind": 1, "play": 1}
    assert make_peer(manifest, table, PEOPLE[1], position=1).study == manifest.digest
    with pytest.raises(SpecError, match="DATA-003"):
        make_peer(make_strict(manifest), table, PEOPLE[1], position=1)


@pytest.mark.parametrize("name", [name for name in CASES if name != "anonml"])
def test_holder_whose_rows_are_all_left_out_takes_part_like_one_without_rows(name: str) -> None:
    manifest, table = CASES[name][0], make_table(2)
    table["wind"] = np.array(["none", "none"], object)
    assert StudyHandle(manifest).fit_rows(table).n_left_out == 2
    assert make_peer(manifest, table, PEOPLE[1], position=1).study == manifest.digest


def test_value_of_person_outside_range_is_clipped_and_unlisted_one_refused() -> None:
    manifest, table = CASES["anonml"][0], make_table(1)
    seat: dict[str, Any] = {"ticket": bytes(32)}
    outside = {**table, "heat": np.array([99.0])}
    assert isinstance(make_peer(manifest, outside, PEOPLE[0], **seat), AnonMLPeer)
    assert StudyHandle(manifest).fit_rows(outside).changed == {"heat": 1}
    unlisted = {**outside, "wind": np.array(["none"], object)}
    for offered in (manifest, make_strict(manifest)):
        with pytest.raises(SpecError, match=r"DATA-003.*wind"):
            make_peer(offered, unlisted, PEOPLE[0], **seat)
    with pytest.raises(SpecError, match="play"):
        make_peer(manifest, {**table, "play": np.array(["maybe"], object)}, PEOPLE[0], **seat)
    with pytest.raises(SpecError, match="DATA-002"):
        make_peer(make_strict(manifest), outside, PEOPLE[0], **seat)


def test_rows_without_person_are_left_out_unless_study_is_strict() -> None:
    manifest = make_manifest("pfds", pfds=PFDS, data={"person": "who", "max_rows_per_person": 2})
    table = {**make_table(5), "who": np.array(["a", None, "a", "a", "b"], object)}
    fitted = StudyHandle(manifest).fit_rows(table)
    assert len(fitted.labels) == 3 and fitted.n_left_out == 1
    with pytest.raises(SpecError, match="names no person"):
        StudyHandle(make_strict(manifest)).fit_rows(table)


def test_strict_changes_digest_only_if_it_is_set() -> None:
    """Studies from before this key keep their digests."""
    manifest = CASES["pfds"][0]
    assert "strict" not in manifest.study.to_content()
    strict = make_strict(manifest)
    assert strict.digest != manifest.digest
    assert Manifest.from_bytes(strict.to_bytes()) == strict


def test_encode_rows_limits_rows_per_person() -> None:
    manifest = make_manifest("pfds", pfds=PFDS, data={"person": "who", "max_rows_per_person": 2})
    table = {**make_table(5), "who": np.array(["a", "a", "a", "b", "b"], object)}
    columns, labels = encode_rows(manifest, table)
    assert len(labels) == len(columns["wind"]) == 4
    with pytest.raises(SpecError, match="who"):
        encode_rows(manifest, make_table(5))
