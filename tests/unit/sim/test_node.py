"""A state that does not survive being saved is a fault of its own protocol, found on the first run."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError
from shoal.messages.base import Message, Record
from shoal.protocols.base import AGGREGATOR, Outbound, PeerState, open_hosts
from shoal.sim.network import run_network
from shoal.sim.node import Node, through_bytes
from toy.protocol import Answer, Counting, Study, ToyAggregator, make


class WithSet(Counting):
    names: frozenset[str] = frozenset()


class WithBase(Record):
    """Declares less than it holds, so that a part is lost when it is saved."""

    last: Message


def test_a_state_comes_back_as_it_was() -> None:
    state = Counting(round=2, counted=(("ann", Answer(study=bytes(32), round=1, report=b"x")),))
    assert through_bytes(state) == state


@pytest.mark.parametrize("state", [WithSet(names=frozenset({"ann"})), WithBase(last=Answer(study=bytes(32), round=1, report=b"x"))])
def test_a_state_that_cannot_be_saved_is_refused(state: Any) -> None:
    with pytest.raises(LocalProtocolError):
        through_bytes(state)


def test_a_machine_that_falls_comes_back_with_what_was_read_from_bytes() -> None:
    node = Node(open_hosts(*make(Study()), SeededEntropy(1), None)["peer-0"], 0.0)
    before = node.host.state = PeerState(asked=("round-1",))
    node.fall(10, forgets=False)
    assert node.host.state == before
    assert node.host.state is not before
    node.fall(10, forgets=True)
    assert node.host.state == PeerState()


def test_a_machine_that_gave_up_stays_as_it_ended() -> None:
    host = open_hosts(*make(Study()), SeededEntropy(1), None)["peer-0"]
    host.state = PeerState(asked=("round-1",))
    node = Node(host, 0.0, {1: Outbound(AGGREGATOR, b"x")}, {5}, {"joint/1"}, has_started=True, is_up=True)
    node.give_up()
    node.fall(9_000, forgets=True)
    assert (node.is_gone, node.is_up, node.outbox, node.alarms, node.tasks) == (True, False, {}, set(), set())
    assert host.state == PeerState(asked=("round-1",))


def test_the_network_saves_every_state() -> None:
    class Hoarder(ToyAggregator):
        def initial(self) -> Counting:
            return WithSet(names=frozenset({"ann"}))

    with pytest.raises(LocalProtocolError) as caught:
        run_network(Hoarder(Study()), make(Study())[1], SeededEntropy(1))
    assert caught.value.code == "MSG-007"
    assert run_network(*make(Study()), SeededEntropy(1)).states[AGGREGATOR].round == 3
