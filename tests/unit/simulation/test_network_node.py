"""Nodes of the simulated network: a state that changes if it is saved is found on the first run."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError
from shoal.messages.base import Message, Record
from shoal.protocols.base import AGGREGATOR, OutgoingMessage, PeerState, open_hosts
from shoal.simulation.network import Node, reload_state, run_network
from tests.support.toy.protocol import Answer, Counting, Study, ToyAggregator, make


class WithSet(Counting):
    names: frozenset[str] = frozenset()


class WithBase(Record):
    """A state that declares less than it has, so that a part is lost when it is saved."""

    last: Message


def test_reload_state_returns_an_equal_state() -> None:
    state = Counting(round=2, counted=(("ann", Answer(study=bytes(32), round=1, report=b"x")),))
    assert reload_state(state) == state


@pytest.mark.parametrize(
    "state",
    [
        WithSet(names=frozenset({"ann"})),
        WithBase(last=Answer(study=bytes(32), round=1, report=b"x")),
    ],
)
def test_reload_state_rejects_a_state_that_changes(state: Any) -> None:
    with pytest.raises(LocalProtocolError):
        reload_state(state)


def test_node_that_went_down_has_the_state_read_from_bytes() -> None:
    node = Node(open_hosts(*make(Study()), SeededEntropy(1), None)["peer-0"], 0.0)
    before = node.host.state = PeerState(asked=("round-1",))
    node.go_down(10, loses_state=False)
    assert node.host.state == before
    assert node.host.state is not before
    node.go_down(10, loses_state=True)
    assert node.host.state == PeerState()


def test_aborted_node_keeps_its_final_state() -> None:
    host = open_hosts(*make(Study()), SeededEntropy(1), None)["peer-0"]
    host.state = PeerState(asked=("round-1",))
    node = Node(
        host,
        0.0,
        {1: OutgoingMessage(AGGREGATOR, b"x")},
        {5},
        {"joint/1"},
        has_started=True,
        is_up=True,
    )
    node.give_up()
    node.go_down(9_000, loses_state=True)
    assert (node.is_gone, node.is_up, node.outbox, node.alarms, node.tasks) == (
        True,
        False,
        {},
        set(),
        set(),
    )
    assert host.state == PeerState(asked=("round-1",))


def test_network_saves_each_state() -> None:
    class Hoarder(ToyAggregator):
        def initial_state(self) -> Counting:
            return WithSet(names=frozenset({"ann"}))

    with pytest.raises(LocalProtocolError) as caught:
        run_network(Hoarder(Study()), make(Study())[1], SeededEntropy(1))
    assert caught.value.code == "MSG-007"
    assert run_network(*make(Study()), SeededEntropy(1)).states[AGGREGATOR].round == 3
