"""What parties of a joint computation sign and seal, and what is refused in its place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sdq_cases import QUERIES, STUDIES, make
from shoal.crypto.boxes import seal
from shoal.crypto.context import Context
from shoal.crypto.masks import public_of
from shoal.crypto.roster import Identity, MemberError, Roster
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.protocols.joint import dealing
from shoal.protocols.sdq.joining import (
    _box_info,
    _box_statement,
    check_contributions,
    check_terms,
    digest_of,
    has_choices,
    key_statement,
    level_of,
    n_parties,
    read_keys,
    seal_scores,
    seated,
    sum_shares,
)
from shoal.protocols.sdq.messages import Ask, Contributions, JointKeys, PartyKey, SealedBox
from shoal.protocols.sdq.params import Params
from shoal.protocols.sdq.script import Course
from shoal.protocols.sums.terms import Terms

STUDY = bytes(range(32))
NAMES = tuple(f"peer-{i}" for i in range(5))
IDENTITIES = [Identity.from_seed(bytes([i + 1]) * 32) for i in range(5)]
ROSTER = Roster(NAMES, tuple(identity.public for identity in IDENTITIES))
TERMS = Terms(STUDY, ROSTER, 4)
CONTEXT = TERMS.context(3, bytes(32))
PARTIES = (0, 1, 2)
PRIVATE = [bytes([i + 50]) * 32 for i in range(5)]


# Which studies can be.


@pytest.mark.parametrize("name", STUDIES)
def test_the_studies_of_these_tests_can_be(name: str) -> None:
    params = STUDIES[name]
    check_terms(params, Terms(STUDY, ROSTER, 5 if params.trust == "local" else params.minimum))


@pytest.mark.parametrize(
    "name, changes, threshold",
    [
        ("paper", {"n_databases": 6}, 4),
        ("paper", {}, 5),
        ("paper", {"minimum": 3}, 3),
        ("paper", {"minimum": 4, "max_colluders": 3}, 4),
        ("selected", {"minimum": 4}, 4),
        ("selected", {"max_colluders": 3}, 5),
        ("selected", {"variant": "plus"}, 5),
        ("selected", {"trust": "local"}, 5),
        ("plus", {"minimum": 5, "max_colluders": 3}, 5),
        ("local", {"n_databases": 6}, 5),
        ("local", {"variant": "plus"}, 5),
    ],
)
def test_a_roster_that_does_not_hold_what_the_study_promises_is_refused_by_both_sides(
    name: str, changes: dict[str, Any], threshold: int
) -> None:
    params = replace(STUDIES[name], **changes)
    with pytest.raises(LocalProtocolError) as caught:
        check_terms(params, Terms(STUDY, ROSTER, threshold))
    assert caught.value.code == "PROTO-001"
    aggregator, peers = make(name)
    aggregator.script.params = params
    with pytest.raises(LocalProtocolError):
        type(aggregator)(aggregator.script, Terms(STUDY, ROSTER, threshold), aggregator.patience)
    member = replace(peers["peer-0"].member, terms=Terms(STUDY, peers["peer-0"].member.terms.roster, threshold))
    with pytest.raises(LocalProtocolError):
        type(peers["peer-0"])(aggregator.script, member, peers["peer-0"]._table.reveal())


def test_colluders_that_are_many_do_not_matter_where_nothing_is_chosen_jointly() -> None:
    params = replace(STUDIES["sums"], minimum=5, max_colluders=4)
    check_terms(params, Terms(STUDY, ROSTER, 5))
    check_terms(replace(STUDIES["bayes"], minimum=5, max_colluders=4), Terms(STUDY, ROSTER, 5))
    check_terms(replace(STUDIES["paper"], minimum=5, max_colluders=4), Terms(STUDY, ROSTER, 5))


def test_scores_in_the_open_are_not_priced_so_that_local_trust_has_no_joint_choices() -> None:
    """Its noise is one-sided: it hides which score is the largest, and not what the scores are."""
    for changes in ({"choice": "sums"}, {"learner": "naive-bayes"}):
        check_terms(replace(STUDIES["local"], variant="plus", **changes), Terms(STUDY, ROSTER, 4))
    with pytest.raises(LocalProtocolError):
        make("plus", changes={"trust": "local"})


def test_how_many_compute() -> None:
    assert n_parties(STUDIES["plus"], True) == 3
    assert n_parties(replace(STUDIES["plus"], max_colluders=2), True) == 5
    assert n_parties(STUDIES["selected"], False) == 5
    assert [name for name, params in STUDIES.items() if has_choices(params)] == ["plus"]


def test_answers_belong_to_the_level_of_their_sizes() -> None:
    assert level_of("answers/3") == level_of("sizes/3") == "sizes/3"
    assert level_of("query/3") == "query/3"
    assert level_of("tables") == "tables"


def test_whatever_is_asked_otherwise_has_another_digest() -> None:
    ask = Ask(study=STUDY, round=1, course=Course(step=1, choices=(0,)))
    others = [
        ask.replace(round=2),
        ask.replace(course=Course(step=1, choices=(1,))),
        ask.replace(query=QUERIES[0]),
        ask.replace(query=QUERIES[1]),
        ask.replace(number=1),
        ask.replace(study=bytes(32)),
    ]
    assert len({digest_of(one) for one in [ask, *others]}) == 7
    assert digest_of(ask) == digest_of(ask.replace())


# Keys.


def keys(context: Context = CONTEXT, parties: tuple[int, ...] = PARTIES) -> JointKeys:
    return JointKeys(study=STUDY, round=3, keys=tuple(a_key(i, public_of(PRIVATE[i]), context) for i in parties))


def a_key(i: int, box: bytes, context: Context = CONTEXT, signer: int | None = None) -> PartyKey:
    identity = IDENTITIES[i if signer is None else signer]
    return PartyKey(party=i, box=box, signature=identity.sign(key_statement(context, i, box)))


def test_keys_that_the_parties_have_signed_are_taken() -> None:
    read = read_keys(keys(), CONTEXT, ROSTER, 3)
    assert {party: key.box for party, key in read.items()} == {i: public_of(PRIVATE[i]) for i in PARTIES}


@pytest.mark.parametrize("parties", [(0, 1, 3), (2, 3, 4), (0, 2, 4)])
def test_whichever_databases_are_there_make_a_committee(parties: tuple[int, ...]) -> None:
    assert tuple(read_keys(keys(parties=parties), CONTEXT, ROSTER, 3)) == parties


def test_a_committee_of_another_size_or_with_somebody_twice_is_refused() -> None:
    """More than C colluders would be half of a smaller one; in one that names somebody twice they would be more than they are."""
    for parties, n in (((0, 1), 3), ((0, 1, 2, 3, 4), 3), ((0, 1, 2, 3), 3), ((1, 1, 2), 3), ((0, 1, 2, 3), 5), ((), 3)):
        with pytest.raises(RemoteProtocolError, match="each once and in order") as caught:
            read_keys(keys(parties=parties), CONTEXT, ROSTER, n)
        assert caught.value.code == "SDQ-003"


def test_every_committee_has_a_context_of_its_own() -> None:
    others = [keys(parties=parties).keys for parties in ((0, 1, 2), (0, 1, 3), (1, 2, 3), (0, 1), (0, 1, 2, 3))]
    others.append((*keys().keys[:2], a_key(2, public_of(PRIVATE[3]))))
    assert len({seated(CONTEXT, one).query for one in others} | {CONTEXT.query}) == 7
    assert seated(CONTEXT, keys().keys) == seated(CONTEXT, keys().keys)
    assert seated(CONTEXT, keys().keys) != seated(TERMS.context(4, bytes(32)), keys().keys)


def test_keys_in_other_hands_or_of_another_round_are_refused() -> None:
    first, second, third = keys().keys
    exchanged = (first.replace(box=second.box, signature=second.signature), second.replace(box=first.box, signature=first.signature), third)
    for bad, code in (
        ((first, second), "SDQ-003"),
        ((second, first, third), "SDQ-003"),
        ((first, second, third, third), "SDQ-003"),
        ((first, second, third.replace(party=3)), "CRYPTO-001"),
        ((first, second, third.replace(party=5)), "PROTO-003"),
        (exchanged, "CRYPTO-001"),
        ((first, second, third.replace(box=first.box)), "CRYPTO-001"),
        ((first, second, a_key(2, third.box, signer=1)), "CRYPTO-001"),
        ((first, second, a_key(2, third.box, TERMS.context(4, bytes(32)))), "CRYPTO-001"),
        ((first, second, a_key(2, third.box, TERMS.context(3, bytes([1]) * 32))), "CRYPTO-001"),
        ((first, second, a_key(2, bytes(32))), "CRYPTO-001"),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            read_keys(keys().replace(keys=bad), CONTEXT, ROSTER, 3)
        assert caught.value.code == code


# Scores.

SCORES = np.array([[5, -7, 0], [1, 2, 3], [10, 0, -1], [0, 0, 1 << 30]])


SEATED = seated(CONTEXT, keys().keys)


def contributions(party: int, context: Context = CONTEXT, parties: tuple[int, ...] = PARTIES) -> Contributions:
    listed = keys(context, parties)
    read = read_keys(listed, context, ROSTER, 3)
    boxes = []
    for scores, dealer in zip(SCORES, (0, 1, 3, 4), strict=True):
        sealed = seal_scores(scores, seated(context, listed.keys), dealer, IDENTITIES[dealer], read, 5, SeededEntropy(dealer))
        assert tuple(box.member for box in sealed) == parties
        boxes.append(sealed[parties.index(party)].replace(member=dealer))
    return Contributions(study=STUDY, round=3, boxes=tuple(boxes))


def taken(message: Contributions, party: int = 1, minimum: int = 4) -> tuple[tuple[int, ...], tuple[int, ...]]:
    dealers = check_contributions(message, SEATED, ROSTER, party, public_of(PRIVATE[party]), minimum)
    return dealers, sum_shares(message, SEATED, party, PRIVATE[party], 3)


def test_shares_add_up_to_the_scores_of_all_dealers() -> None:
    found = {party: taken(contributions(party), party) for party in PARTIES}
    assert {dealers for dealers, _ in found.values()} == {(0, 1, 3, 4)}
    assert dealing.recombine({party: shares for party, (_, shares) in found.items()}, 3) == tuple(SCORES.sum(axis=0).tolist())


def test_contributions_that_are_too_few_or_not_in_order_are_refused() -> None:
    message = contributions(1)
    a, b, c, d = message.boxes
    for boxes in ((a, b, c), (a, b, c, c), (a, b, d, c), ()):
        with pytest.raises(RemoteProtocolError, match="each once and in order") as caught:
            taken(message.replace(boxes=boxes))
        assert caught.value.code == "SDQ-003"
    with pytest.raises(RemoteProtocolError, match="5 are needed"):
        taken(message, minimum=5)


def test_a_box_of_another_party_round_committee_or_dealer_is_refused() -> None:
    message = contributions(1)
    a, b, c, d = message.boxes
    other = contributions(1, TERMS.context(2, bytes(32))).boxes[3]
    for bad, code in (
        (contributions(2).boxes[3], "CRYPTO-001"),
        (other, "CRYPTO-001"),
        (contributions(1, parties=(1, 2, 3)).boxes[3], "CRYPTO-001"),
        (contributions(1, parties=(0, 1, 3)).boxes[3], "CRYPTO-001"),
        (d.replace(box=d.box[:-1] + bytes([d.box[-1] ^ 1])), "CRYPTO-001"),
        (d.replace(signature=c.signature), "CRYPTO-001"),
        (d.replace(member=5), "PROTO-003"),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            taken(message.replace(boxes=(a, b, c, bad)))
        assert caught.value.code == code
    with pytest.raises(RemoteProtocolError):
        taken(message.replace(boxes=(a, b.replace(member=2), c, d)))


@pytest.mark.parametrize("plain", [b"", bytes(47), bytes(64), b"\xff" * 48, None])
def test_a_dealer_that_signs_what_cannot_be_used_is_named(plain: bytes | None) -> None:
    message, public = contributions(1), public_of(PRIVATE[1])
    box = b"not sealed" if plain is None else seal(public, plain, _box_info(SEATED, 4, 1))
    bad = SealedBox(member=4, box=box, signature=IDENTITIES[4].sign(_box_statement(SEATED, 4, 1, public, box)))
    with pytest.raises(MemberError) as caught:
        taken(message.replace(boxes=(*message.boxes[:3], bad)))
    assert caught.value.member == 4


def test_a_score_that_is_too_large_is_never_dealt() -> None:
    read = read_keys(keys(), CONTEXT, ROSTER, 3)
    with pytest.raises(LocalProtocolError):
        seal_scores(np.array([1 << 40]), SEATED, 0, IDENTITIES[0], read, 5, SeededEntropy(1))


def test_the_defaults_of_a_study_can_be() -> None:
    params = Params(STUDIES["plus"].schema, 1.0, 100, n_databases=5, minimum=5)
    check_terms(params, Terms(STUDY, ROSTER, 5))
