"""Machines of PFDS with simulated identities: one roster, the same for the same seed."""

from __future__ import annotations

import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import SpecError
from shoal.protocols.base import run_local
from shoal.protocols.pfds.aggregator import LocalAggregator, SecureSumAggregator
from shoal.protocols.pfds.peer import LocalPeer, ReadOnlyPeer, SecureSumPeer
from shoal.simulation.machines import make_pfds_machines, make_pfds_paper_machines
from tests.support.pfds import STUDIES, make, parted, pooled_rows, saved
from tests.support.pfds_paper import STUDIES as TREES
from tests.support.pfds_paper import make_points


@pytest.mark.parametrize("name", STUDIES)
def test_pfds_machines_have_places_and_readers_are_not_on_the_roster(name: str) -> None:
    aggregator, peers = make(name)
    kinds = (
        (LocalPeer, LocalAggregator) if name == "local" else (SecureSumPeer, SecureSumAggregator)
    )
    rows = parted(STUDIES[name], pooled_rows(STUDIES[name]))
    assert type(aggregator) is kinds[1] and aggregator.names == tuple(f"peer-{i}" for i in range(5))
    assert list(peers) == [*aggregator.names, "reader-0", "reader-1"]
    for i, holder in enumerate(aggregator.names):
        peer = peers[holder]
        assert type(peer) is kinds[0] and peer.study == aggregator.study
        assert (peer._rows.reveal().cells == rows[i].cells).all()
    assert type(peers["reader-0"]) is type(peers["reader-1"]) is ReadOnlyPeer
    assert peers["reader-1"]._rows is None and peers["reader-0"].study == aggregator.study


def test_pfds_members_have_separate_keys() -> None:
    aggregator, peers = make("sums")
    for i, name in enumerate(aggregator.names):
        member = peers[name].member
        assert (
            member.me == i
            and member.sum_params == aggregator.sum_params
            and member.identity.public_key == aggregator.sum_params.roster.keys[i]
        )
    assert aggregator.sum_params.threshold == 4 and len(set(aggregator.sum_params.roster.keys)) == 5


def test_pfds_machines_depend_only_on_the_seed() -> None:
    params = STUDIES["sums"]
    rows = parted(params, pooled_rows(params))
    first, again, other = (
        make_pfds_machines(params, rows, seed)[0].sum_params for seed in (1, 1, "other")
    )  # type: ignore[attr-defined]
    assert first == again
    assert first.study != other.study and not set(first.roster.keys) & set(other.roster.keys)


@pytest.mark.parametrize("name", ["local", "sums"])
def test_pfds_machines_accept_other_classes(name: str) -> None:
    kinds = saved(name)
    aggregator, peers = make(name, **kinds)
    assert type(aggregator) is kinds["aggregator"] and type(peers["peer-0"]) is kinds["peer"]


@pytest.mark.parametrize("n", [0, 1, 4, 6])
@pytest.mark.parametrize("name", ["local", "sums"])
def test_pfds_machines_need_rows_for_each_holder(name: str, n: int) -> None:
    params = STUDIES[name]
    rows = parted(params, pooled_rows(params))
    with pytest.raises(SpecError) as error:
        make_pfds_machines(params, [*rows, rows[0]][:n])
    were = "1 holder was" if n == 1 else f"{n} holders were"
    assert (
        error.value.code == "PFDS-005"
        and error.value.what == f"{were} given to a study that has n_holders = 5."
    )


@pytest.mark.parametrize("n", [3, 5])
def test_paper_machines_depend_only_on_the_seed(n: int) -> None:
    params = TREES["classes"]
    points = make_points(params)
    with pytest.raises(
        SpecError, match=f"{n} holders were given to a study that has n_holders = 4"
    ):
        make_pfds_paper_machines(params, [*points, points[0]][:n])


def test_paper_trees_reach_all_holders_and_readers() -> None:
    params = TREES["classes"]
    results = run_local(
        *make_pfds_paper_machines(params, make_points(params), n_readers=1), SeededEntropy(1)
    ).results
    names = [f"peer-{i}" for i in range(params.n_holders)]
    assert all(list(results[name].datasets) == names for name in ("peer-0", "reader-0"))
