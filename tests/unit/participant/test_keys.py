"""Keys: one secret, one key per study, and the master key if the roster has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.clock import ManualClock
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import LocalProtocolError
from shoal.participant.journal import Journal
from shoal.participant.keys import (
    derive_identity,
    derive_study_identity,
    ensure_seed,
    load_master_identity,
)
from tests.support.participants import make_manifest


def test_ensure_seed_draws_once(tmp_path: Path) -> None:
    path, entropy = tmp_path / "ledger.db", SystemEntropy()
    with Journal(path, ManualClock()) as journal:
        seed, known = (
            ensure_seed(journal, entropy),
            load_master_identity(journal, entropy).public_key,
        )
    with Journal(path, ManualClock()) as journal:
        assert ensure_seed(journal, entropy) == seed
        assert load_master_identity(journal, entropy).public_key == known
        assert journal.store_seed(bytes(32)) == seed


def test_ensure_seed_refuses_seeded_entropy(tmp_path: Path) -> None:
    with Journal(tmp_path / "ledger.db", ManualClock()) as journal:
        with pytest.raises(LocalProtocolError, match="ENTROPY-001"):
            load_master_identity(journal, SeededEntropy(1))
        assert journal.read_seed() is None


def test_identities_of_two_studies_differ() -> None:
    seed = bytes(range(32))
    one, two = make_manifest("pfds", pfds={"n_holders": 3}), make_manifest("anonml")
    keys = {
        derive_identity(one, seed).public_key,
        derive_identity(two, seed).public_key,
        derive_study_identity(seed, bytes(32)).public_key,
    }
    assert len(keys) == 3
    assert (
        derive_identity(one, seed).public_key == derive_study_identity(seed, one.digest).public_key
    )
    assert derive_identity(one, bytes(32)).public_key not in keys


def test_derive_identity_uses_master_key_on_roster(tmp_path: Path) -> None:
    with Journal(tmp_path / "ledger.db", ManualClock()) as journal:
        known, seed = (
            load_master_identity(journal, SystemEntropy()).public_key,
            ensure_seed(journal, SystemEntropy()),
        )
    others = tuple(derive_study_identity(bytes(32), bytes([i])).public_key for i in range(3))
    settings = {"n_databases": 3, "max_colluders": 0}
    assert (
        derive_identity(
            make_manifest("sdq", 3, (known, *others[:2]), sdq=settings), seed
        ).public_key
        == known
    )
    assert derive_identity(make_manifest("sdq", 3, others, sdq=settings), seed).public_key not in (
        known,
        *others,
    )
