"""Keys and sealed scores of a joint computation, and the checks of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.crypto.hpke import seal
from shoal.crypto.identity import Identity, MemberError, Roster
from shoal.crypto.secagg.context import RoundContext
from shoal.crypto.secagg.key_agreement import derive_public_key
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.protocols.mpc import shares as dealing
from shoal.protocols.sdq.committee import (
    _encode_box_info,
    _encode_box_statement,
    check_contributions,
    check_sum_parameters,
    committee_context,
    compute_ask_digest,
    count_parties,
    encode_key_statement,
    find_selection_question,
    has_choices,
    read_keys,
    seal_scores,
    sum_shares,
)
from shoal.protocols.sdq.messages import Contributions, JointKeys, PartyKey, SDQAsk, SealedBox
from shoal.protocols.sdq.params import SDQParams
from shoal.protocols.sdq.script import SDQScriptState
from shoal.protocols.secagg.messages import SumParameters
from tests.support.sdq import QUERIES, STUDIES, make

STUDY = bytes(range(32))
NAMES = tuple(f"peer-{i}" for i in range(5))
IDENTITIES = [Identity.from_seed(bytes([i + 1]) * 32) for i in range(5)]
ROSTER = Roster(NAMES, tuple(identity.public_key for identity in IDENTITIES))
TERMS = SumParameters(STUDY, ROSTER, 4)
CONTEXT = TERMS.make_context(3, bytes(32))
PARTIES = (0, 1, 2)
PRIVATE = [bytes([i + 50]) * 32 for i in range(5)]


# Valid studies.


@pytest.mark.parametrize("name", STUDIES)
def test_studies_of_these_tests_are_valid(name: str) -> None:
    params = STUDIES[name]
    check_sum_parameters(
        params, SumParameters(STUDY, ROSTER, 5 if params.trust == "local" else params.minimum)
    )


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
def test_roster_that_does_not_fit_the_study_is_rejected_by_both_sides(
    name: str, changes: dict[str, Any], threshold: int
) -> None:
    params = replace(STUDIES[name], **changes)
    with pytest.raises(LocalProtocolError) as caught:
        check_sum_parameters(params, SumParameters(STUDY, ROSTER, threshold))
    assert caught.value.code == "PROTO-001"
    aggregator, peers = make(name)
    aggregator.script.params = params
    with pytest.raises(LocalProtocolError):
        type(aggregator)(
            aggregator.script, SumParameters(STUDY, ROSTER, threshold), aggregator.phase_timeout
        )
    member = replace(
        peers["peer-0"].member,
        sum_params=SumParameters(STUDY, peers["peer-0"].member.sum_params.roster, threshold),
    )
    with pytest.raises(LocalProtocolError):
        type(peers["peer-0"])(aggregator.script, member, peers["peer-0"]._table.reveal())


def test_many_colluders_are_allowed_without_joint_choices() -> None:
    params = replace(STUDIES["sums"], minimum=5, max_colluders=4)
    check_sum_parameters(params, SumParameters(STUDY, ROSTER, 5))
    check_sum_parameters(
        replace(STUDIES["bayes"], minimum=5, max_colluders=4), SumParameters(STUDY, ROSTER, 5)
    )
    check_sum_parameters(
        replace(STUDIES["paper"], minimum=5, max_colluders=4), SumParameters(STUDY, ROSTER, 5)
    )


def test_local_trust_rejects_joint_choices() -> None:
    """The noise of a choice is one-sided: it hides the largest score but not the scores."""
    for changes in ({"choice": "sums"}, {"learner": "naive-bayes"}):
        check_sum_parameters(
            replace(STUDIES["local"], variant="plus", **changes), SumParameters(STUDY, ROSTER, 4)
        )
    with pytest.raises(LocalProtocolError):
        make("plus", changes={"trust": "local"})


def test_count_parties_depends_on_the_kind_of_round() -> None:
    assert count_parties(STUDIES["plus"], True) == 3
    assert count_parties(replace(STUDIES["plus"], max_colluders=2), True) == 5
    assert count_parties(STUDIES["selected"], False) == 5
    assert [name for name, params in STUDIES.items() if has_choices(params)] == ["plus"]


def test_selection_of_answers_is_that_of_the_sizes_of_the_level() -> None:
    assert find_selection_question("answers/3") == find_selection_question("sizes/3") == "sizes/3"
    assert find_selection_question("query/3") == "query/3"
    assert find_selection_question("tables") == "tables"


def test_ask_digest_depends_on_every_field() -> None:
    ask = SDQAsk(study=STUDY, round=1, course=SDQScriptState(step=1, choices=(0,)))
    others = [
        ask.replace(round=2),
        ask.replace(course=SDQScriptState(step=1, choices=(1,))),
        ask.replace(query=QUERIES[0]),
        ask.replace(query=QUERIES[1]),
        ask.replace(number=1),
        ask.replace(study=bytes(32)),
    ]
    assert len({compute_ask_digest(one) for one in [ask, *others]}) == 7
    assert compute_ask_digest(ask) == compute_ask_digest(ask.replace())


# Keys.


def make_keys(context: RoundContext = CONTEXT, parties: tuple[int, ...] = PARTIES) -> JointKeys:
    return JointKeys(
        study=STUDY,
        round=3,
        keys=tuple(make_key(i, derive_public_key(PRIVATE[i]), context) for i in parties),
    )


def make_key(
    i: int, box: bytes, context: RoundContext = CONTEXT, signer: int | None = None
) -> PartyKey:
    identity = IDENTITIES[i if signer is None else signer]
    return PartyKey(
        party=i, box=box, signature=identity.sign(encode_key_statement(context, i, box))
    )


def test_read_keys_accepts_keys_signed_by_the_parties() -> None:
    read = read_keys(make_keys(), CONTEXT, ROSTER, 3)
    assert {party: key.box for party, key in read.items()} == {
        i: derive_public_key(PRIVATE[i]) for i in PARTIES
    }


@pytest.mark.parametrize("parties", [(0, 1, 3), (2, 3, 4), (0, 2, 4)])
def test_any_databases_can_form_a_committee(parties: tuple[int, ...]) -> None:
    assert tuple(read_keys(make_keys(parties=parties), CONTEXT, ROSTER, 3)) == parties


def test_committee_of_wrong_size_or_with_duplicate_party_is_rejected() -> None:
    """In a smaller committee, or with a party named twice, C colluders might be half."""
    for parties, n in (
        ((0, 1), 3),
        ((0, 1, 2, 3, 4), 3),
        ((0, 1, 2, 3), 3),
        ((1, 1, 2), 3),
        ((0, 1, 2, 3), 5),
        ((), 3),
    ):
        with pytest.raises(RemoteProtocolError, match="each once and in order") as caught:
            read_keys(make_keys(parties=parties), CONTEXT, ROSTER, n)
        assert caught.value.code == "SDQ-003"


def test_committee_context_depends_on_the_committee() -> None:
    others = [
        make_keys(parties=parties).keys
        for parties in ((0, 1, 2), (0, 1, 3), (1, 2, 3), (0, 1), (0, 1, 2, 3))
    ]
    others.append((*make_keys().keys[:2], make_key(2, derive_public_key(PRIVATE[3]))))
    assert len({committee_context(CONTEXT, one).query for one in others} | {CONTEXT.query}) == 7
    assert committee_context(CONTEXT, make_keys().keys) == committee_context(
        CONTEXT, make_keys().keys
    )
    assert committee_context(CONTEXT, make_keys().keys) != committee_context(
        TERMS.make_context(4, bytes(32)), make_keys().keys
    )


def test_keys_of_another_party_or_round_are_rejected() -> None:
    first, second, third = make_keys().keys
    exchanged = (
        first.replace(box=second.box, signature=second.signature),
        second.replace(box=first.box, signature=first.signature),
        third,
    )
    for bad, code in (
        ((first, second), "SDQ-003"),
        ((second, first, third), "SDQ-003"),
        ((first, second, third, third), "SDQ-003"),
        ((first, second, third.replace(party=3)), "CRYPTO-001"),
        ((first, second, third.replace(party=5)), "PROTO-003"),
        (exchanged, "CRYPTO-001"),
        ((first, second, third.replace(box=first.box)), "CRYPTO-001"),
        ((first, second, make_key(2, third.box, signer=1)), "CRYPTO-001"),
        ((first, second, make_key(2, third.box, TERMS.make_context(4, bytes(32)))), "CRYPTO-001"),
        (
            (first, second, make_key(2, third.box, TERMS.make_context(3, bytes([1]) * 32))),
            "CRYPTO-001",
        ),
        ((first, second, make_key(2, bytes(32))), "CRYPTO-001"),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            read_keys(make_keys().replace(keys=bad), CONTEXT, ROSTER, 3)
        assert caught.value.code == code


# Scores.

SCORES = np.array([[5, -7, 0], [1, 2, 3], [10, 0, -1], [0, 0, 1 << 30]])


SEATED = committee_context(CONTEXT, make_keys().keys)


def make_contributions(
    party: int, context: RoundContext = CONTEXT, parties: tuple[int, ...] = PARTIES
) -> Contributions:
    listed = make_keys(context, parties)
    read = read_keys(listed, context, ROSTER, 3)
    boxes = []
    for scores, dealer in zip(SCORES, (0, 1, 3, 4), strict=True):
        sealed = seal_scores(
            scores,
            committee_context(context, listed.keys),
            dealer,
            IDENTITIES[dealer],
            read,
            5,
            SeededEntropy(dealer),
        )
        assert tuple(box.member for box in sealed) == parties
        boxes.append(sealed[parties.index(party)].replace(member=dealer))
    return Contributions(study=STUDY, round=3, boxes=tuple(boxes))


def read_contributions(
    message: Contributions, party: int = 1, minimum: int = 4
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    dealers = check_contributions(
        message, SEATED, ROSTER, party, derive_public_key(PRIVATE[party]), minimum
    )
    return dealers, sum_shares(message, SEATED, party, PRIVATE[party], 3)


def test_shares_add_up_to_the_scores_of_all_dealers() -> None:
    found = {party: read_contributions(make_contributions(party), party) for party in PARTIES}
    assert {dealers for dealers, _ in found.values()} == {(0, 1, 3, 4)}
    assert dealing.recombine({party: shares for party, (_, shares) in found.items()}, 3) == tuple(
        SCORES.sum(axis=0).tolist()
    )


def test_too_few_or_unordered_contributions_are_rejected() -> None:
    message = make_contributions(1)
    a, b, c, d = message.boxes
    for boxes in ((a, b, c), (a, b, c, c), (a, b, d, c), ()):
        with pytest.raises(RemoteProtocolError, match="each once and in order") as caught:
            read_contributions(message.replace(boxes=boxes))
        assert caught.value.code == "SDQ-003"
    with pytest.raises(RemoteProtocolError, match="5 are needed"):
        read_contributions(message, minimum=5)


def test_box_of_another_party_round_committee_or_dealer_is_rejected() -> None:
    message = make_contributions(1)
    a, b, c, d = message.boxes
    other = make_contributions(1, TERMS.make_context(2, bytes(32))).boxes[3]
    for bad, code in (
        (make_contributions(2).boxes[3], "CRYPTO-001"),
        (other, "CRYPTO-001"),
        (make_contributions(1, parties=(1, 2, 3)).boxes[3], "CRYPTO-001"),
        (make_contributions(1, parties=(0, 1, 3)).boxes[3], "CRYPTO-001"),
        (d.replace(box=d.box[:-1] + bytes([d.box[-1] ^ 1])), "CRYPTO-001"),
        (d.replace(signature=c.signature), "CRYPTO-001"),
        (d.replace(member=5), "PROTO-003"),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            read_contributions(message.replace(boxes=(a, b, c, bad)))
        assert caught.value.code == code
    with pytest.raises(RemoteProtocolError):
        read_contributions(message.replace(boxes=(a, b.replace(member=2), c, d)))


@pytest.mark.parametrize("plain", [b"", bytes(47), bytes(64), b"\xff" * 48, None])
def test_dealer_of_unusable_signed_shares_is_named(plain: bytes | None) -> None:
    message, public = make_contributions(1), derive_public_key(PRIVATE[1])
    box = b"not sealed" if plain is None else seal(public, plain, _encode_box_info(SEATED, 4, 1))
    bad = SealedBox(
        member=4,
        box=box,
        signature=IDENTITIES[4].sign(_encode_box_statement(SEATED, 4, 1, public, box)),
    )
    with pytest.raises(MemberError) as caught:
        read_contributions(message.replace(boxes=(*message.boxes[:3], bad)))
    assert caught.value.member == 4


def test_seal_scores_rejects_too_large_scores() -> None:
    read = read_keys(make_keys(), CONTEXT, ROSTER, 3)
    with pytest.raises(LocalProtocolError):
        seal_scores(np.array([1 << 40]), SEATED, 0, IDENTITIES[0], read, 5, SeededEntropy(1))


def test_default_settings_of_a_study_are_valid() -> None:
    params = SDQParams(STUDIES["plus"].schema, 1.0, 100, n_databases=5, minimum=5)
    check_sum_parameters(params, SumParameters(STUDY, ROSTER, 5))
