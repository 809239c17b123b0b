"""What a peer checks of a publication before it looks at its row."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anonml_cases import STUDIES, publications, script_of
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.protocols.anonml.assignment import draw_words
from shoal.protocols.anonml.messages import Publication


@pytest.mark.parametrize("name", STUDIES)
def test_what_an_honest_run_publishes_is_taken(name: str) -> None:
    script = script_of(name)
    for phase, publication in enumerate(publications(script)):
        script.check(phase, publication)
        assert len(script.questions(phase, publication)) >= 1


def changed(**change: object) -> Callable[[Publication], Publication]:
    return lambda publication: publication.replace(**change)


LAST: dict[str, Callable[[Publication], Publication]] = {
    "no cuts": changed(cuts=()),
    "cuts for two numbers": changed(cuts=((1.0,), (2.0,))),
    "an empty list of cuts": changed(cuts=((),)),
    "too many cuts": changed(cuts=(tuple(float(i) / 10 for i in range(60)),)),
    "a cut below the range": changed(cuts=((-0.1, 5.0),)),
    "a cut at the end of the range": changed(cuts=((5.0, 10.0),)),
    "falling cuts": changed(cuts=((5.0, 4.0),)),
    "a cut twice": changed(cuts=((5.0, 5.0),)),
    "zero twice": changed(cuts=((-0.0, 0.0),)),
    "points too": changed(points=(1.0,)),
    "no levels": changed(levels=()),
    "levels of three features": lambda publication: publication.replace(levels=publication.levels[:3]),
    "levels of a bin too few": lambda publication: publication.replace(levels=(publication.levels[0][:-1], *publication.levels[1:])),
    "levels of a bin too many": lambda publication: publication.replace(levels=(*publication.levels[:-1], (*publication.levels[-1], 0))),
    "no level at all": lambda publication: publication.replace(levels=((), *publication.levels[1:])),
    "a fourth level": lambda publication: publication.replace(levels=(*publication.levels[:-1], (0, 1, 2, 3))),
    "an enormous level": lambda publication: publication.replace(levels=(*publication.levels[:-1], (0, 1, 2, (1 << 63) - 1))),
    "other cuts with the same levels": changed(cuts=((5.0,),)),
}


@pytest.mark.parametrize("fault", LAST)
def test_a_publication_for_blocks_that_does_not_fit_is_the_aggregators_fault(fault: str) -> None:
    script = script_of("blocks")
    honest = publications(script)[-1]
    with pytest.raises(RemoteProtocolError) as caught:
        script.check(script.n_phases - 1, LAST[fault](honest))
    assert caught.value.code == "MSG-005"


@pytest.mark.parametrize("name", STUDIES)
def test_a_publication_belongs_to_its_phase(name: str) -> None:
    script = script_of(name)
    shown = publications(script)
    for phase in (-1, script.n_phases, 1 << 40):
        with pytest.raises(RemoteProtocolError):
            script.check(phase, shown[0])
    if script.n_phases > 1:
        with pytest.raises(RemoteProtocolError):
            script.check(0, shown[-1])
        with pytest.raises(RemoteProtocolError):
            script.check(script.n_phases - 1, shown[0])


@pytest.mark.parametrize("name", STUDIES)
def test_the_schema_has_bins_once_they_are_published_and_not_before(name: str) -> None:
    script = script_of(name)
    assert any(feature.n_bins is None for feature in script.binned(Publication()).features)
    binned = script.binned(publications(script)[-1])
    assert all(feature.n_bins is not None for feature in binned.features)
    assert binned.names == script.params.schema.names
    assert binned.label == script.params.schema.label


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "shuffled"])
def test_more_cuts_than_were_priced_are_the_aggregators_fault(name: str) -> None:
    script = script_of(name)
    phase = next(phase for phase in range(script.n_phases) if script.expected(phase)[1])
    most = tuple(float(i) / 10 for i in range(script.max_cuts(script.params.unbinned[0])))
    script.check(phase, Publication(cuts=(most,)))
    with pytest.raises(RemoteProtocolError):
        script.check(phase, Publication(cuts=((*most, 9.9),)))


@pytest.mark.parametrize("name", STUDIES)
def test_a_group_is_a_matter_of_ones_own_words(name: str) -> None:
    script = script_of(name)
    words = draw_words(60, SeededEntropy(1))
    for phase in range(script.n_phases):
        assert script.group_of(phase, words).tolist() == [int(script.group_of(phase, words[i : i + 1])[0]) for i in range(60)]


@pytest.mark.parametrize("name", STUDIES)
def test_the_first_phase_is_the_same_for_everyone(name: str) -> None:
    """Before anything is counted there is one publication; in the study of one crowd it is the only one."""
    script = script_of(name)
    shown = script.publish(())
    script.check(0, shown)
    moved = shown.replace(points=tuple(point + 0.25 for point in shown.points), cuts=tuple(cuts[:-1] for cuts in shown.cuts))
    with pytest.raises(RemoteProtocolError):
        script.check(0, moved)
