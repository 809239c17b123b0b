"""What a database remembers: secrets go when a round is closed or left, and what is known of selections stays."""

from __future__ import annotations

from machine_runs import before
from sdq_cases import logged
from shoal.messages.codec import dump, load
from shoal.protocols.sdq.following import Following
from shoal.protocols.sdq.messages import Contributions
from shoal.protocols.sums.messages import SumBoxes


def test_a_fresh_state_has_nothing_to_close() -> None:
    assert Following().closed() == Following().left() == Following()


def test_closing_erases_the_joint_computation_alone() -> None:
    state, _ = before(logged("plus")[1]["peer-1"], Contributions)
    closed = state.closed()
    assert state.box and closed.box == b"" and closed.keys is None
    assert closed.seat is not None and closed.seat.is_over and not closed.seat.links
    assert (closed.asked_for, closed.asked, closed.sitting) == (state.asked_for, state.asked, state.sitting)


def test_leaving_erases_the_sum_too_and_keeps_what_was_selected() -> None:
    state, _ = before(logged("selected")[1]["peer-1"], SumBoxes)
    left = state.left()
    assert left.sitting is not None and left.sitting.is_over and left.sitting.own == left.sitting.mask == b""
    assert left.selected == state.selected == ("sizes/0",) and left.role == state.role
    assert load(dump(left), Following) == left


def test_secrets_are_not_shown() -> None:
    state, _ = before(logged("plus")[1]["peer-1"], Contributions)
    assert str(state.box) not in repr(state) and "role=" not in repr(state)
