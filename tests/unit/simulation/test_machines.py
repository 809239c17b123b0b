"""Machines of SDQ with simulated identities: one roster, the same for the same seed."""

from __future__ import annotations

import pytest

from shoal.errors import LocalProtocolError
from shoal.protocols.sdq.variants import make_sdq_script
from shoal.simulation.machines import make_sdq_machines
from tests.support.sdq import FREE, QUERIES, STUDIES, Saved, SavedAggregator, tables


@pytest.mark.parametrize("name", STUDIES)
def test_sdq_machines_share_a_roster_and_have_separate_keys(name: str) -> None:
    params = STUDIES[name]
    aggregator, peers = make_sdq_machines(
        make_sdq_script(params), tables(), free=FREE, queries=QUERIES
    )
    assert (
        list(peers) == list(aggregator.sum_params.roster.names) == [f"peer-{i}" for i in range(5)]
    )
    for i, peer in enumerate(peers.values()):
        assert peer.member.me == i and peer.member.sum_params == aggregator.sum_params
        assert peer.member.identity.public_key == aggregator.sum_params.roster.keys[i]
        assert peer.study == aggregator.study and peer.query_rules == aggregator.query_rules == FREE
        assert (peer._table.reveal().labels == tables()[i].labels).all()
    assert aggregator.sum_params.threshold == (5 if params.trust == "local" else params.minimum)


def test_sdq_machines_depend_only_on_the_seed() -> None:
    script = make_sdq_script(STUDIES["paper"])
    first, again, other = (
        make_sdq_machines(script, tables(), seed)[0].sum_params for seed in (1, 1, "other")
    )
    assert first == again
    assert first.study != other.study and not set(first.roster.keys) & set(other.roster.keys)


def test_sdq_machines_accept_other_classes() -> None:
    aggregator, peers = make_sdq_machines(
        make_sdq_script(STUDIES["paper"]), tables(), peer=Saved, aggregator=SavedAggregator
    )
    assert type(aggregator) is SavedAggregator and {type(peer) for peer in peers.values()} == {
        Saved
    }


def test_sdq_machines_need_one_table_for_each_database() -> None:
    with pytest.raises(LocalProtocolError, match="4 databases"):
        make_sdq_machines(make_sdq_script(STUDIES["paper"]), tables()[:4])
