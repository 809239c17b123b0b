"""Keys: one secret, a key for each study, and the master key only where it is on the roster."""

from __future__ import annotations

from pathlib import Path

import pytest

from participants import manifest_of
from shoal.clock import ManualClock
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import LocalProtocolError
from shoal.participant.identity import for_study, identity_for, master, seed_of
from shoal.participant.journal import Journal


def test_the_secret_is_drawn_once_and_kept(tmp_path: Path) -> None:
    path, entropy = tmp_path / "ledger.db", SystemEntropy()
    with Journal(path, ManualClock()) as journal:
        seed, known = seed_of(journal, entropy), master(journal, entropy).public
    with Journal(path, ManualClock()) as journal:
        assert seed_of(journal, entropy) == seed
        assert master(journal, entropy).public == known
        assert journal.keep_seed(bytes(32)) == seed


def test_it_is_never_seeded(tmp_path: Path) -> None:
    with Journal(tmp_path / "ledger.db", ManualClock()) as journal:
        with pytest.raises(LocalProtocolError, match="ENTROPY-001"):
            master(journal, SeededEntropy(1))
        assert journal.seed() is None


def test_no_two_studies_see_the_same_key() -> None:
    seed = bytes(range(32))
    one, two = manifest_of("pfds", pfds={"n_holders": 3}), manifest_of("anonml")
    keys = {identity_for(one, seed).public, identity_for(two, seed).public, for_study(seed, bytes(32)).public}
    assert len(keys) == 3
    assert identity_for(one, seed).public == for_study(seed, one.digest).public
    assert identity_for(one, bytes(32)).public not in keys


def test_the_master_key_is_used_where_the_roster_has_it(tmp_path: Path) -> None:
    with Journal(tmp_path / "ledger.db", ManualClock()) as journal:
        known, seed = master(journal, SystemEntropy()).public, seed_of(journal, SystemEntropy())
    others = tuple(for_study(bytes(32), bytes([i])).public for i in range(3))
    settings = {"n_databases": 3, "max_colluders": 0}
    assert identity_for(manifest_of("sdq", 3, (known, *others[:2]), sdq=settings), seed).public == known
    assert identity_for(manifest_of("sdq", 3, others, sdq=settings), seed).public not in (known, *others)
