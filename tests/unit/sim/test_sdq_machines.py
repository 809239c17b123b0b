"""Machines with simulated identities: everyone on one roster, the same ones from the same seed."""

from __future__ import annotations

import pytest

from sdq_cases import FREE, QUERIES, STUDIES, Saved, SavedAggregator, tables
from shoal.errors import LocalProtocolError
from shoal.protocols.sdq.scripts import script_of
from shoal.sim.sdq_machines import machines


@pytest.mark.parametrize("name", STUDIES)
def test_everyone_is_on_one_roster_with_a_key_of_its_own(name: str) -> None:
    params = STUDIES[name]
    aggregator, peers = machines(script_of(params), tables(), free=FREE, queries=QUERIES)
    assert list(peers) == list(aggregator.terms.roster.names) == [f"peer-{i}" for i in range(5)]
    for i, peer in enumerate(peers.values()):
        assert peer.member.me == i and peer.member.terms == aggregator.terms
        assert peer.member.identity.public == aggregator.terms.roster.keys[i]
        assert peer.study == aggregator.study and peer.free == aggregator.free == FREE
        assert (peer._table.reveal().labels == tables()[i].labels).all()
    assert aggregator.terms.threshold == (5 if params.trust == "local" else params.minimum)


def test_the_same_seed_gives_the_same_study_and_another_one_another() -> None:
    script = script_of(STUDIES["paper"])
    first, again, other = (machines(script, tables(), seed)[0].terms for seed in (1, 1, "other"))
    assert first == again
    assert first.study != other.study and not set(first.roster.keys) & set(other.roster.keys)


def test_other_kinds_of_machines_can_be_had() -> None:
    aggregator, peers = machines(script_of(STUDIES["paper"]), tables(), peer=Saved, aggregator=SavedAggregator)
    assert type(aggregator) is SavedAggregator and {type(peer) for peer in peers.values()} == {Saved}


def test_as_many_tables_as_databases_are_needed() -> None:
    with pytest.raises(LocalProtocolError, match="4 databases"):
        machines(script_of(STUDIES["paper"]), tables()[:4])
