"""Networks with any faults, for properties that must hold on all of them."""

from __future__ import annotations

from hypothesis import strategies as st

from shoal.simulation.network import Faults

absence = st.tuples(st.integers(0, 20_000), st.none() | st.integers(20_001, 40_000))


def any_faults(most_lost: float) -> st.SearchStrategy[Faults]:
    """Return networks with each kind of fault, alone and together; three peers may be absent."""
    return st.builds(
        Faults,
        loss=st.floats(0, most_lost),
        duplicate=st.floats(0, 1),
        min_delay=st.integers(0, 50),
        max_delay=st.integers(50, 5_000),
        crash=st.floats(0, 0.1),
        amnesia=st.floats(0, 1),
        downtime=st.integers(1, 5_000),
        retry=st.integers(50, 2_000),
        absences=st.dictionaries(
            st.sampled_from(["peer-0", "peer-1", "peer-2"]), absence, max_size=3
        ),
    )
