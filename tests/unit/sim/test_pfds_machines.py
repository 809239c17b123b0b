"""Machines with simulated identities: everyone on one roster, the same ones from the same seed."""

from __future__ import annotations

import pytest

from pfds_cases import STUDIES, make, pooled_rows, saved
from pfds_sharing import STUDIES as TREES
from pfds_sharing import points_of
from pfds_sums import parted
from shoal.entropy import SeededEntropy
from shoal.errors import SpecError
from shoal.protocols.base import run_local
from shoal.protocols.pfds.reader import Reader
from shoal.protocols.pfds.summing_aggregator import SummingAggregator
from shoal.protocols.pfds.summing_peer import SummingPeer
from shoal.protocols.pfds.tables_aggregator import TablesAggregator
from shoal.protocols.pfds.tables_peer import TablesPeer
from shoal.sim.pfds_machines import machines, paper_machines


@pytest.mark.parametrize("name", STUDIES)
def test_everyone_has_a_place_and_those_that_read_are_on_no_roster(name: str) -> None:
    aggregator, peers = make(name)
    kinds = (TablesPeer, TablesAggregator) if name == "local" else (SummingPeer, SummingAggregator)
    rows = parted(STUDIES[name], pooled_rows(STUDIES[name]))
    assert type(aggregator) is kinds[1] and aggregator.names == tuple(f"peer-{i}" for i in range(5))
    assert list(peers) == [*aggregator.names, "reader-0", "reader-1"]
    for i, holder in enumerate(aggregator.names):
        peer = peers[holder]
        assert type(peer) is kinds[0] and peer.study == aggregator.study
        assert (peer._rows.reveal().cells == rows[i].cells).all()
    assert type(peers["reader-0"]) is type(peers["reader-1"]) is Reader
    assert peers["reader-1"]._rows is None and peers["reader-0"].study == aggregator.study


def test_members_have_a_key_of_their_own() -> None:
    aggregator, peers = make("sums")
    for i, name in enumerate(aggregator.names):
        member = peers[name].member
        assert member.me == i and member.terms == aggregator.terms and member.identity.public == aggregator.terms.roster.keys[i]
    assert aggregator.terms.threshold == 4 and len(set(aggregator.terms.roster.keys)) == 5


def test_the_same_seed_gives_the_same_study_and_another_one_another() -> None:
    params = STUDIES["sums"]
    rows = parted(params, pooled_rows(params))
    first, again, other = (machines(params, rows, seed)[0].terms for seed in (1, 1, "other"))  # type: ignore[attr-defined]
    assert first == again
    assert first.study != other.study and not set(first.roster.keys) & set(other.roster.keys)


@pytest.mark.parametrize("name", ["local", "sums"])
def test_other_kinds_of_machines_can_be_had(name: str) -> None:
    kinds = saved(name)
    aggregator, peers = make(name, **kinds)
    assert type(aggregator) is kinds["aggregator"] and type(peers["peer-0"]) is kinds["peer"]


@pytest.mark.parametrize("n", [0, 1, 4, 6])
@pytest.mark.parametrize("name", ["local", "sums"])
def test_as_many_rows_as_holders_are_needed(name: str, n: int) -> None:
    params = STUDIES[name]
    rows = parted(params, pooled_rows(params))
    with pytest.raises(SpecError) as error:
        machines(params, [*rows, rows[0]][:n])
    were = "1 holder was" if n == 1 else f"{n} holders were"
    assert error.value.code == "PFDS-005" and error.value.what == f"{were} given to a study that has n_holders = 5."


@pytest.mark.parametrize("n", [3, 5])
def test_so_it_is_with_trees(n: int) -> None:
    params = TREES["classes"]
    points = points_of(params)
    with pytest.raises(SpecError, match=f"{n} holders were given to a study that has n_holders = 4"):
        paper_machines(params, [*points, points[0]][:n])


def test_trees_are_shared_by_all_and_read_by_others() -> None:
    params = TREES["classes"]
    results = run_local(*paper_machines(params, points_of(params), n_readers=1), SeededEntropy(1)).results
    names = [f"peer-{i}" for i in range(params.n_holders)]
    assert all(list(results[name].datasets) == names for name in ("peer-0", "reader-0"))
