"""The peer's state: closing or leaving a round erases secrets and keeps selections."""

from __future__ import annotations

from shoal.messages.codec import dump, load
from shoal.protocols.sdq.messages import Contributions
from shoal.protocols.sdq.peer import SDQPeerState
from shoal.protocols.secagg.messages import SumBoxes
from tests.support.machines import before
from tests.support.sdq import logged


def test_closing_or_leaving_an_initial_state_changes_nothing() -> None:
    assert SDQPeerState().close_computation() == SDQPeerState().leave_round() == SDQPeerState()


def test_close_computation_erases_the_joint_computation_only() -> None:
    state, _ = before(logged("plus")[1]["peer-1"], Contributions)
    closed = state.close_computation()
    assert state.box and closed.box == b"" and closed.keys is None
    assert closed.seat is not None and closed.seat.is_over and not closed.seat.links
    assert (closed.asked_for, closed.asked, closed.sitting) == (
        state.asked_for,
        state.asked,
        state.sitting,
    )


def test_leave_round_erases_the_sum_and_keeps_selections() -> None:
    state, _ = before(logged("selected")[1]["peer-1"], SumBoxes)
    left = state.leave_round()
    assert (
        left.sitting is not None
        and left.sitting.is_over
        and left.sitting.own == left.sitting.mask == b""
    )
    assert left.selected == state.selected == ("sizes/0",) and left.role == state.role
    assert load(dump(left), SDQPeerState) == left


def test_repr_of_state_shows_no_secrets() -> None:
    state, _ = before(logged("plus")[1]["peer-1"], Contributions)
    assert str(state.box) not in repr(state) and "role=" not in repr(state)
