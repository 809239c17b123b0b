"""What is written at the end of a study: a release that every reader believes, or a model; and never over something else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from release_cases import NORTH, NOT_MISSING, PAPER, real_rows, study_of
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, StoreError, UsageError
from shoal.participant.outputs import MODEL, RELEASE, prepared, release_of, write_model, write_release
from shoal.protocols.base import run_local
from shoal.protocols.machines import PeerState
from shoal.protocols.pfds.paper import Points
from shoal.protocols.pfds.params import Rows
from shoal.protocols.pfds.reader import Hearing
from shoal.protocols.pfds.sharing_aggregator import SharingAggregator
from shoal.protocols.pfds.sharing_peer import SharingPeer, SharingTrees
from shoal.protocols.pfds.tables_aggregator import TablesAggregator
from shoal.protocols.pfds.tables_peer import TablesPeer
from shoal.releases.artefact import read
from shoal.sim.pfds_machines import MINUTE
from shoal.study.manifest import Manifest
from shoal.study.pfds import params_of


def finished(*edits: tuple[str, str]) -> tuple[Manifest, PeerState]:
    """The study, and the state in which its first holder has finished."""
    study = study_of(*edits)
    manifest, params = Manifest(study), params_of(study)
    columns = real_rows(study)
    encoded, labels = params.schema.encode(columns), params.schema.encode_label(columns)
    names = tuple(f"holder-{i}" for i in range(params.n_holders))
    own = [np.arange(len(labels)) % params.n_holders == i for i in range(params.n_holders)]
    if params.variant == "paper":
        points = [Points.of(params, {name: column[mine] for name, column in encoded.items()}, labels[mine]) for mine in own]
        peers = {name: SharingPeer(params, manifest.digest, name, points[i]) for i, name in enumerate(names)}
        outcome = run_local(SharingAggregator(params, manifest.digest, names, MINUTE), peers, SeededEntropy(1))
    else:
        rows = Rows.of(params, encoded, labels)
        tables = {name: TablesPeer(params, manifest.digest, i, rows.take(own[i])) for i, name in enumerate(names)}
        outcome = run_local(TablesAggregator(params, manifest.digest, names, MINUTE), tables, SeededEntropy(1))
    return manifest, outcome.states["holder-0"]


def test_the_release_of_variant_plus_is_drawn_from_what_was_published(tmp_path: Path) -> None:
    manifest, state = finished()
    release = release_of(manifest, state, SeededEntropy(2))
    assert release is not None and not release.is_simulated and len(release.dataset) == manifest.study.participation.size
    path = write_release(tmp_path / "new" / "out", release, "north", NORTH)
    signed = read(path, [NORTH.public])
    assert path == tmp_path / "new" / "out" / RELEASE and signed.signer.name == "north" and signed.release.model is not None
    assert signed.release.manifest.digest == manifest.digest
    with pytest.raises(UsageError, match="never overwritten"):
        write_release(tmp_path / "new" / "out", release, "north", NORTH)


def test_the_release_of_variant_paper_is_the_holders_own_data(tmp_path: Path) -> None:
    manifest, state = finished(PAPER, NOT_MISSING)
    assert isinstance(state, SharingTrees) and state.data is not None
    release = release_of(manifest, state, SeededEntropy(2))
    assert release is not None and release.model is None
    signed = read(write_release(tmp_path, release, "north", NORTH))
    assert len(signed.release.dataset) == len(release.dataset) > 0


def test_where_nothing_was_published_there_is_no_release() -> None:
    manifest = Manifest(study_of())
    for state in (Hearing(), SharingTrees(), PeerState()):
        assert release_of(manifest, state, SeededEntropy(1)) is None


def test_a_model_is_written_once(tmp_path: Path) -> None:
    model = json.dumps({"kind": "tree"}).encode()
    path = write_model(tmp_path / "out", model)
    assert path == tmp_path / "out" / MODEL and path.read_bytes() == model
    assert write_model(tmp_path / "out", model) == path
    with pytest.raises(UsageError) as refused:
        write_model(tmp_path / "out", b"{}")
    assert refused.value.code == "NEW-001" and path.read_bytes() == model
    assert [entry.name for entry in path.parent.iterdir()] == [MODEL]


@pytest.mark.parametrize("content", [b"", b"[]", b"1", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_model_is_not_written(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        write_model(tmp_path / "out", content)
    assert refused.value.code == "NET-002" and not (tmp_path / "out").exists()


def test_a_link_in_place_of_the_model_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "else").write_bytes(b"{}")
    (tmp_path / MODEL).symlink_to(tmp_path / "else")
    with pytest.raises(UsageError):
        write_model(tmp_path, b"{}")


@pytest.mark.parametrize("name", ["file/out", "a\0b"])
def test_a_directory_that_cannot_be_is_a_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written") as refused:
        prepared(tmp_path / name)
    assert refused.value.code == "NEW-001"


def test_a_directory_without_permission_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # whoever runs the tests may be allowed everything
    with pytest.raises(StoreError, match="Permission denied"):
        prepared(tmp_path)
