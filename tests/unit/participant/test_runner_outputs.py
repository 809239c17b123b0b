"""Results of a study: a signed release or a model, which never replaces another file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, StoreError, UsageError
from shoal.participant.runner import (
    MODEL_NAME,
    RELEASE_NAME,
    make_release,
    prepare_directory,
    write_model,
    write_release,
)
from shoal.protocols.base import run_local
from shoal.protocols.machines import PeerState
from shoal.protocols.pfds.aggregator import LocalAggregator
from shoal.protocols.pfds.paper.aggregator import PaperAggregator
from shoal.protocols.pfds.paper.peer import PaperPeer, PFDSPaperSharerState
from shoal.protocols.pfds.paper.script import TreeRows
from shoal.protocols.pfds.params import PFDSRows
from shoal.protocols.pfds.peer import LocalPeer, PFDSPeerState
from shoal.releases.artifact import read_signed_release
from shoal.simulation.machines import MINUTE
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.study.pfds import build_params
from tests.support.releases import NORTH, NOT_MISSING, PAPER, make_study, real_rows


def run_to_end(*edits: tuple[str, str]) -> tuple[Manifest, PeerState]:
    """Return the study, and the final state of its first holder."""
    study = make_study(*edits)
    manifest, params = Manifest(study), build_params(study)
    columns = real_rows(study)
    encoded, labels = params.schema.encode(columns), params.schema.encode_label(columns)
    names = tuple(f"holder-{i}" for i in range(params.n_holders))
    own = [np.arange(len(labels)) % params.n_holders == i for i in range(params.n_holders)]
    if params.variant == "paper":
        points = [
            TreeRows.from_columns(
                params, {name: column[mine] for name, column in encoded.items()}, labels[mine]
            )
            for mine in own
        ]
        peers = {
            name: PaperPeer(params, manifest.digest, name, points[i])
            for i, name in enumerate(names)
        }
        outcome = run_local(
            PaperAggregator(params, manifest.digest, names, MINUTE), peers, SeededEntropy(1)
        )
    else:
        rows = PFDSRows.from_columns(params, encoded, labels)
        tables = {
            name: LocalPeer(params, manifest.digest, i, rows.take(own[i]))
            for i, name in enumerate(names)
        }
        outcome = run_local(
            LocalAggregator(params, manifest.digest, names, MINUTE), tables, SeededEntropy(1)
        )
    return manifest, outcome.states["holder-0"]


def test_release_of_plus_is_drawn_from_published_model(tmp_path: Path) -> None:
    manifest, state = run_to_end()
    release = make_release(StudyHandle(manifest), state, SeededEntropy(2))
    assert (
        release is not None
        and not release.is_simulated
        and len(release.dataset) == manifest.study.participation.size
    )
    path = write_release(tmp_path / "new" / "out", release, "north", NORTH)
    signed = read_signed_release(path, [NORTH.public_key])
    assert (
        path == tmp_path / "new" / "out" / RELEASE_NAME
        and signed.signer.name == "north"
        and signed.release.model is not None
    )
    assert signed.release.manifest.digest == manifest.digest
    with pytest.raises(UsageError, match="never overwritten"):
        write_release(tmp_path / "new" / "out", release, "north", NORTH)


def test_release_of_paper_is_data_of_holder(tmp_path: Path) -> None:
    manifest, state = run_to_end(PAPER, NOT_MISSING)
    assert isinstance(state, PFDSPaperSharerState) and state.data is not None
    release = make_release(StudyHandle(manifest), state, SeededEntropy(2))
    assert release is not None and release.model is None
    signed = read_signed_release(write_release(tmp_path, release, "north", NORTH))
    assert len(signed.release.dataset) == len(release.dataset) > 0


def test_make_release_without_publication_returns_none() -> None:
    manifest = Manifest(make_study())
    for state in (PFDSPeerState(), PFDSPaperSharerState(), PeerState()):
        assert make_release(StudyHandle(manifest), state, SeededEntropy(1)) is None


def test_write_model_never_overwrites_other_content(tmp_path: Path) -> None:
    model = json.dumps({"kind": "tree"}).encode()
    path = write_model(tmp_path / "out", model)
    assert path == tmp_path / "out" / MODEL_NAME and path.read_bytes() == model
    assert write_model(tmp_path / "out", model) == path
    with pytest.raises(UsageError) as refused:
        write_model(tmp_path / "out", b"{}")
    assert refused.value.code == "NEW-001" and path.read_bytes() == model
    assert [entry.name for entry in path.parent.iterdir()] == [MODEL_NAME]


@pytest.mark.parametrize("content", [b"", b"[]", b"1", b"{", b"\xff", b"[" * 100_000])
def test_write_model_rejects_content_that_is_not_a_model(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        write_model(tmp_path / "out", content)
    assert refused.value.code == "NET-002" and not (tmp_path / "out").exists()


def test_write_model_does_not_follow_link(tmp_path: Path) -> None:
    (tmp_path / "else").write_bytes(b"{}")
    (tmp_path / MODEL_NAME).symlink_to(tmp_path / "else")
    with pytest.raises(UsageError):
        write_model(tmp_path, b"{}")


@pytest.mark.parametrize("name", ["file/out", "a\0b"])
def test_prepare_directory_raises_for_invalid_path(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written") as refused:
        prepare_directory(tmp_path / name)
    assert refused.value.code == "NEW-001"


def test_prepare_directory_raises_without_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        os, "access", lambda path, mode: False
    )  # whoever runs the tests may be allowed everything
    with pytest.raises(StoreError, match="Permission denied"):
        prepare_directory(tmp_path)
