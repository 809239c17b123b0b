"""The checks of a publication that a peer makes before it reads its row."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.protocols.anonml.assignment import draw_words
from shoal.protocols.anonml.messages import AnonMLPublication
from tests.support.anonml import STUDIES, build_named_script, publications


@pytest.mark.parametrize("name", STUDIES)
def test_check_publication_accepts_honest_run(name: str) -> None:
    script = build_named_script(name)
    for phase, publication in enumerate(publications(script)):
        script.check_publication(phase, publication)
        assert len(script.questions(phase, publication)) >= 1


def changed(**change: object) -> Callable[[AnonMLPublication], AnonMLPublication]:
    return lambda publication: publication.replace(**change)


LAST: dict[str, Callable[[AnonMLPublication], AnonMLPublication]] = {
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
    "levels of three features": lambda publication: publication.replace(
        levels=publication.levels[:3]
    ),
    "levels of a bin too few": lambda publication: publication.replace(
        levels=(publication.levels[0][:-1], *publication.levels[1:])
    ),
    "levels of a bin too many": lambda publication: publication.replace(
        levels=(*publication.levels[:-1], (*publication.levels[-1], 0))
    ),
    "no level at all": lambda publication: publication.replace(
        levels=((), *publication.levels[1:])
    ),
    "a fourth level": lambda publication: publication.replace(
        levels=(*publication.levels[:-1], (0, 1, 2, 3))
    ),
    "an enormous level": lambda publication: publication.replace(
        levels=(*publication.levels[:-1], (0, 1, 2, (1 << 63) - 1))
    ),
    "other cuts with the same levels": changed(cuts=((5.0,),)),
}


@pytest.mark.parametrize("fault", LAST)
def test_check_publication_rejects_invalid_blocks(fault: str) -> None:
    script = build_named_script("blocks")
    honest = publications(script)[-1]
    with pytest.raises(RemoteProtocolError) as caught:
        script.check_publication(script.n_phases - 1, LAST[fault](honest))
    assert caught.value.code == "MSG-005"


@pytest.mark.parametrize("name", STUDIES)
def test_check_publication_rejects_publication_of_other_phase(name: str) -> None:
    script = build_named_script(name)
    shown = publications(script)
    for phase in (-1, script.n_phases, 1 << 40):
        with pytest.raises(RemoteProtocolError):
            script.check_publication(phase, shown[0])
    if script.n_phases > 1:
        with pytest.raises(RemoteProtocolError):
            script.check_publication(0, shown[-1])
        with pytest.raises(RemoteProtocolError):
            script.check_publication(script.n_phases - 1, shown[0])


@pytest.mark.parametrize("name", STUDIES)
def test_bin_schema_has_bins_after_publication_only(name: str) -> None:
    script = build_named_script(name)
    assert any(
        feature.n_bins is None for feature in script.bin_schema(AnonMLPublication()).features
    )
    binned = script.bin_schema(publications(script)[-1])
    assert all(feature.n_bins is not None for feature in binned.features)
    assert binned.names == script.params.schema.names
    assert binned.label == script.params.schema.label


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "shuffled"])
def test_check_publication_rejects_more_cuts_than_priced(name: str) -> None:
    script = build_named_script(name)
    phase = next(phase for phase in range(script.n_phases) if script.publication_sizes(phase)[1])
    most = tuple(float(i) / 10 for i in range(script.max_cuts(script.params.unbinned[0])))
    script.check_publication(phase, AnonMLPublication(cuts=(most,)))
    with pytest.raises(RemoteProtocolError):
        script.check_publication(phase, AnonMLPublication(cuts=((*most, 9.9),)))


@pytest.mark.parametrize("name", STUDIES)
def test_groups_depend_on_own_words_only(name: str) -> None:
    script = build_named_script(name)
    words = draw_words(60, SeededEntropy(1))
    for phase in range(script.n_phases):
        assert script.assign_groups(phase, words).tolist() == [
            int(script.assign_groups(phase, words[i : i + 1])[0]) for i in range(60)
        ]


@pytest.mark.parametrize("name", STUDIES)
def test_check_publication_requires_fixed_first_phase(name: str) -> None:
    """Before the first count there is one publication; with ``shuffled`` it is the only one."""
    script = build_named_script(name)
    shown = script.publish(())
    script.check_publication(0, shown)
    moved = shown.replace(
        points=tuple(point + 0.25 for point in shown.points),
        cuts=tuple(cuts[:-1] for cuts in shown.cuts),
    )
    with pytest.raises(RemoteProtocolError):
        script.check_publication(0, moved)
