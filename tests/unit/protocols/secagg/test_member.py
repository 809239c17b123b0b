"""A member with a dishonest collector.

It continues, drops a message, or rejects it with a reason; the collector never learns the secrets
that open its vector.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from shoal.crypto.hpke import seal
from shoal.crypto.secagg.context import (
    digest_key_list,
    encode_box_statement,
    encode_survivors_statement,
)
from shoal.crypto.secagg.key_shares import BOX_BYTES, MemberSecrets
from shoal.crypto.secagg.masking import mask_vector
from shoal.crypto.shamir import SHARE_BYTES
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Message
from shoal.messages.codec import dump, encode, load
from shoal.protocols.base import AGGREGATOR, Send
from shoal.protocols.secagg.member import MemberState, SumMember
from shoal.protocols.secagg.messages import (
    SumAgreed,
    SumAgreement,
    SumBoxes,
    SumKeyList,
    SumKeys,
    SumMasked,
    SumShares,
    SumSurvivors,
    SumUnmask,
    read_keys,
    split_row,
)
from tests.support.crypto import recombine_secret
from tests.support.toy.sums import Bench, SumStudy

STUDY = SumStudy(n_members=5, threshold=4)
FROM_COLLECTOR = (SumKeyList, SumBoxes, SumSurvivors, SumAgreement)


@cache
def honest() -> Bench:
    """A round that all survive, and one of which member 4 drops out after it has dealt."""
    bench = Bench(STUDY)
    bench.play()
    bench.play(2, gone={4: "masked"})
    return bench


def give(
    sitting: MemberState, message: Message, i: int = 0
) -> tuple[MemberState, tuple[Send, ...]]:
    return honest().members[i].handle_message(sitting, message, SeededEntropy(9))


def refuses(sitting: MemberState, message: Message, why: str, i: int = 0) -> None:
    with pytest.raises(RemoteProtocolError, match=f"(?s){why}"):
        give(sitting, message, i)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_member_rejects_other_signing_key() -> None:
    with pytest.raises(LocalProtocolError, match="SUM-001"):
        SumMember(STUDY.terms, 1, STUDY.identity(0))


def test_member_begins_round_once_and_no_earlier_round() -> None:
    member, entropy = honest().members[0], SeededEntropy(3)
    first, sends = member.begin(None, 5, STUDY.query(5), entropy)
    assert [(send.to, type(send.message)) for send in sends] == [(AGGREGATOR, SumKeys)]
    for number in (0, 4, 5):
        assert member.begin(first, number, STUDY.query(number), entropy) == (first, ())
    with pytest.raises(RemoteProtocolError, match=r"SUM-102.*question of round 5 has changed"):
        member.begin(first, 5, STUDY.query(6), entropy)
    second, _ = member.begin(first, 7, STUDY.query(7), entropy)
    assert second.round == 7
    assert not set(first.secrets) & set(second.secrets), "nothing is used in two rounds"
    assert not any(secret in dump(second) for secret in first.secrets), "and what is over is erased"


def test_member_resumes_after_restart_at_any_step() -> None:
    """Its state is saved and loaded before every message; and a vector that was stored before the
    state was saved still fits.
    """
    for _, sitting, message in honest().shown:
        assert load(dump(sitting), MemberState) == sitting
        if isinstance(message, SumBoxes) and not sitting.dealers:
            i = next(i for i in range(5) if i not in message.dealers)
            member = honest().members[i]
            ready, _ = give(load(dump(sitting), MemberState), message, i)
            again, _ = give(load(dump(sitting), MemberState), message, i)
            stored = member.mask_values(ready, STUDY.values(i))
            assert stored == member.mask_values(again, STUDY.values(i))
            assert member.mark_released(again, stored).phase == "masked"


def test_member_ends_round_for_vector_of_other_state() -> None:
    """A member that has lost its state begins the round again.

    Its ledger then returns the earlier vector, which is not masked with the new keys; the same is
    true of one that was masked for other dealers.
    """
    bench = honest()
    member = bench.members[0]
    sitting, boxes = bench.before(SumBoxes, 0)
    ready, _ = give(sitting, boxes)
    stored = bench.heard(SumMasked, 0)[1]
    assert member.mark_released(ready, stored).phase == "masked"
    for other in (
        ready.replace(dealers=(0, 1, 2, 3), shares=ready.shares[:4]),
        ready.replace(query=bytes(32)),
        sitting,
    ):
        assert member.mark_released(other, stored).is_over
    fewer = boxes.replace(
        dealers=boxes.dealers[:-1],
        boxes=boxes.boxes[:-BOX_BYTES],
        commitments=boxes.commitments[:-32],
        signatures=boxes.signatures[:-64],
    )
    assert member.mark_released(give(sitting, fewer)[0], stored).is_over
    assert not any(member.mark_released(sitting, stored).secrets)


def test_member_drops_repeated_and_late_messages() -> None:
    bench = honest()
    for kind in (SumKeyList, SumBoxes, SumSurvivors):
        sitting, message = bench.before(kind, 0)
        after, _ = give(sitting, message)
        assert after != sitting and give(after, message) == (after, ())
    first = [message for to, _, message in bench.shown if to == 0 and message.round == 1]  # type: ignore[attr-defined]
    second = [sitting for to, sitting, _ in bench.shown if to == 0 and sitting.round == 2]
    over = bench.sittings[0]
    assert over is not None
    for sitting in (*second, over):
        for message in first:
            assert give(sitting, message) == (sitting, ()), (
                "a message of an earlier round, replayed"
            )
    for message in first:
        assert give(over.replace(round=0), message) == (over.replace(round=0), ()), (
            "one of a round that this member was not asked"
        )


def test_member_ends_round_when_not_listed() -> None:
    bench = honest()
    for kind, change in (
        (SumKeyList, lambda m: m.replace(members=m.members[1:], entries=m.entries[96:])),
        (SumSurvivors, lambda m: m.replace(survivors=m.survivors[1:])),
    ):
        sitting, message = bench.before(kind, 0)
        over, sends = give(sitting, change(message))
        assert over.is_over and sends == () and not any(over.secrets) and over.shares == ()
    sitting = bench.before(SumBoxes, 0)[0]
    survivors = bench.before(SumSurvivors, 0)[1].survivors[1:]
    assert give(sitting, SumSurvivors(study=STUDY.digest, round=1, survivors=survivors))[0].is_over
    agreement = bench.before(SumAgreement, 0)[1]
    assert give(bench.before(SumSurvivors, 0)[0], agreement.replace(survivors=survivors))[0].is_over


def test_member_accepts_agreement_before_survivors() -> None:
    bench = honest()
    in_order, agreement = bench.before(SumAgreement, 0)
    overtaken, _ = bench.before(SumSurvivors, 0)
    assert give(overtaken, agreement) == give(in_order, agreement)
    assert [type(send.message) for send in give(overtaken, agreement)[1]] == [SumUnmask]


@pytest.mark.parametrize("kind", [SumKeys, SumShares, SumMasked, SumAgreed, SumUnmask])
def test_member_rejects_messages_of_members(kind: type[Message]) -> None:
    refuses(honest().before(SumBoxes, 0)[0], honest().heard(kind, 1)[1], "PROTO-003")


# Lists of keys.


def test_member_rejects_key_list_that_is_short_or_has_wrong_members_or_keys() -> None:
    sitting, listed = honest().before(SumKeyList, 0)
    refuses(
        sitting,
        listed.replace(members=(0, 1, 2), entries=listed.entries[: 3 * 96]),
        "SUM-102.*3 members; 4 are needed",
    )
    refuses(
        sitting, listed.replace(members=(0, 1, 2, 3, 5)), "SUM-102.*member 5, which cannot be in it"
    )
    refuses(
        sitting,
        listed.replace(entries=flipped(listed.entries, 0)),
        "SUM-102.*wrong keys of this member",
    )
    refuses(sitting, listed.replace(entries=listed.entries[:-1]), "MSG-005")
    low = listed.entries[:96] + bytes(32) + listed.entries[128:]
    refuses(sitting, listed.replace(entries=low), "CRYPTO-001.*Member 1 published an invalid key")
    low = listed.entries[:128] + bytes(32) + listed.entries[160:]
    refuses(sitting, listed.replace(entries=low), "CRYPTO-001.*Member 1 published an invalid key")


def test_member_rejects_second_key_list() -> None:
    sitting, listed = honest().before(SumKeyList, 0)
    after, _ = give(sitting, listed)
    refuses(
        after, listed.replace(entries=flipped(listed.entries, 200)), "SUM-102.*two lists of keys"
    )


def test_member_detects_different_key_lists_before_masking() -> None:
    """The collector shows member 0 another box key of member 1, to which it would like to have the
    private one.
    """
    bench = Bench(STUDY)
    bench.play(until="shares")
    sitting, listed = bench.before(SumKeyList, 0)
    split = listed.replace(entries=flipped(listed.entries, 96 + 32 + 5))
    misled, sends = give(sitting, split)
    bench.sittings[0] = misled
    bench.pending = [(i, sends[0].message if i == 0 else message) for i, message in bench.pending]
    with pytest.raises(RemoteProtocolError, match="CRYPTO-001"):
        bench.run()
    rows = [message for i, message in bench.pending if i != 0]
    assert all(isinstance(message, SumShares) for message in rows)


def test_member_detects_invented_member_before_masking() -> None:
    """The collector takes part in the name of member 1, without its key on the roster."""
    bench = honest()
    sitting, boxes = bench.before(SumBoxes, 0)
    forged = boxes.replace(signatures=STUDY.identity(2).sign(b"anything") + boxes.signatures[64:])
    refuses(sitting, forged, "CRYPTO-001.*name of member 1 does not verify")


# Boxes.


def test_member_rejects_swapped_changed_and_old_boxes() -> None:
    bench = honest()
    sitting, boxes = bench.before(SumBoxes, 0)
    again = next(
        message
        for to, _, message in bench.shown
        if to == 0 and isinstance(message, SumBoxes) and message.round == 2
    )
    others = next(
        message
        for to, _, message in bench.shown
        if to == 1 and isinstance(message, SumBoxes) and message.round == 1
    )
    n = BOX_BYTES
    bad = {
        "two dealers' boxes swapped": boxes.replace(
            boxes=boxes.boxes[n : 2 * n] + boxes.boxes[:n] + boxes.boxes[2 * n :]
        ),
        "another recipient's": others.replace(dealers=boxes.dealers),
        "of another round": again.replace(round=1),
        "a commitment changed": boxes.replace(commitments=flipped(boxes.commitments, 3)),
        "a box changed": boxes.replace(boxes=flipped(boxes.boxes, 60)),
        "a signature changed": boxes.replace(signatures=flipped(boxes.signatures, 70)),
    }
    for message in bad.values():
        refuses(sitting, message, "CRYPTO-001.*member")
    refuses(sitting, boxes.replace(boxes=boxes.boxes[:-1]), "MSG-005.*boxes")
    refuses(sitting, boxes.replace(commitments=b""), "MSG-005.*commitments")
    refuses(sitting, boxes.replace(signatures=boxes.signatures + bytes(64)), "MSG-005.*signatures")


def test_member_rejects_boxes_of_too_few_or_wrong_dealers() -> None:
    sitting, boxes = honest().before(SumBoxes, 0)
    few = boxes.replace(
        dealers=(1, 2),
        boxes=boxes.boxes[: 2 * BOX_BYTES],
        commitments=boxes.commitments[:64],
        signatures=boxes.signatures[:128],
    )
    refuses(sitting, few, "SUM-102.*list of dealers has 3 members; 4 are needed")
    refuses(sitting, boxes.replace(dealers=(1, 2, 3, 7)), "SUM-102.*member 7")
    refuses(sitting, boxes.replace(dealers=(0, 1, 2, 3)), "SUM-102.*from the member itself")
    refuses(honest().before(SumKeyList, 0)[0], boxes, "SUM-102.*has shared no secrets")
    after, _ = give(sitting, boxes)
    refuses(after, few, "SUM-102.*two lists of dealers")


def test_member_names_dealer_of_wrong_box() -> None:
    """It has signed what it sent, so it was not the collector."""
    bench = Bench(STUDY)
    bench.play(until="shares")
    context, keys = (
        STUDY.terms.make_context(1, STUDY.query(1)),
        read_keys(bench.before(SumKeyList, 3)[1]),
    )
    sent = next(message for i, message in bench.pending if i == 3)
    assert isinstance(sent, SumShares)
    box = seal(keys[0].box, bytes(72), context.bind("box", 3, 0))
    commitment = sent.commitments[:32]
    signature = STUDY.identity(3).sign(
        encode_box_statement(context, 3, 0, digest_key_list(context, keys), box, commitment)
    )
    bench.run(until="masked")
    mine, boxes = bench.before(SumBoxes, 0)
    n = 2 * BOX_BYTES
    lie = boxes.replace(
        boxes=boxes.boxes[:n] + box + boxes.boxes[n + BOX_BYTES :],
        signatures=boxes.signatures[:128] + signature + boxes.signatures[192:],
    )
    with pytest.raises(RemoteProtocolError, match=r"CRYPTO-001.*from member 3 for member 0"):
        bench.members[0].handle_message(mine, lie, SeededEntropy(1))


# Lists of survivors.


def test_member_rejects_survivors_that_are_too_few_or_strangers() -> None:
    sitting, listed = honest().before(SumSurvivors, 0)
    refuses(
        sitting,
        listed.replace(survivors=(0, 1, 2)),
        "SUM-102.*list of survivors has 3 members; 4 are needed",
    )
    refuses(sitting, listed.replace(survivors=(0, 1, 2, 3, 4, 5)), "SUM-102.*member 5")
    refuses(honest().before(SumBoxes, 0)[0], listed, "SUM-102.*has sent no vector")


def test_member_signs_one_survivor_list_and_reveals_for_it_only() -> None:
    sitting, agreement = honest().before(SumAgreement, 0)
    for other in ((0, 1, 2, 3), (1, 2, 3, 4)):
        refuses(
            sitting,
            SumSurvivors(study=STUDY.digest, round=1, survivors=other),
            "SUM-102.*two lists of survivors",
        )
        context = STUDY.terms.make_context(1, STUDY.query(1))
        signatures = b"".join(
            STUDY.identity(i).sign(encode_survivors_statement(context, other, range(5)))
            for i in other
        )
        second = agreement.replace(survivors=other, signers=other, signatures=signatures)
        refuses(sitting, second, "SUM-102.*two lists of survivors")


def test_member_requires_enough_valid_signatures_of_survivors() -> None:
    sitting, agreement = honest().before(SumAgreement, 0)
    few = agreement.replace(signers=agreement.signers[:3], signatures=agreement.signatures[:192])
    refuses(sitting, few, "SUM-102.*signers has 3 members; 4 are needed")
    refuses(sitting, agreement.replace(signatures=agreement.signatures[:-1]), "MSG-005")
    refuses(
        sitting,
        agreement.replace(signatures=flipped(agreement.signatures, 100)),
        "CRYPTO-001.*member 1",
    )
    swapped = agreement.signatures[64:128] + agreement.signatures[:64] + agreement.signatures[128:]
    refuses(sitting, agreement.replace(signatures=swapped), "CRYPTO-001.*member 0")
    refuses(sitting, agreement.replace(signers=(0, 1, 2, 9)), "SUM-102.*member 9")
    dropped, other = next(
        (s, m)
        for to, s, m in honest().shown
        if to == 0 and isinstance(m, SumAgreement) and m.round == 2
    )
    refuses(dropped, other.replace(signers=(1, 2, 3, 4)), "SUM-102.*member 4")
    refuses(dropped, agreement.replace(round=2, survivors=(0, 1, 2, 3)), "CRYPTO-001")


def test_member_reveals_one_share_of_each_dealer() -> None:
    bench = honest()
    sitting, agreement = next(
        (s, m)
        for to, s, m in bench.shown
        if to == 0 and isinstance(m, SumAgreement) and m.round == 2
    )
    over, (send,) = give(sitting, agreement)
    assert isinstance(send.message, SumUnmask) and over.is_over
    revealed = split_row(send.message.shares, 68, sitting.dealers, "shares")
    for dealer, plain in zip(sitting.dealers, sitting.shares, strict=True):
        own, other = plain[:SHARE_BYTES], plain[SHARE_BYTES:]
        shown, hidden = (other, own) if dealer == 4 else (own, other)
        assert revealed[dealer].startswith(shown)
        assert hidden not in encode(send.message)


# What a collector can make of all that it has seen.


def opened(i: int, secrets: MemberSecrets, number: int, bench: Bench) -> list[int]:
    """A member's vector, if these are its secrets."""
    gathering, masked = next(
        (g, m)
        for j, g, m in bench.told
        if j == i and isinstance(m, SumMasked) and m.round == number
    )
    context, size = STUDY.terms.make_context(number, STUDY.query(number)), bench.study.size
    keys = {dealer: gathering.public_keys[dealer] for dealer in gathering.dealers}
    masks = mask_vector(np.zeros(size, np.int64), secrets, context, i, keys)
    return (masked.vector.expect("uint64", size) - masks).view(np.int64).tolist()


def shares_of(i: int, number: int, bench: Bench, n: int) -> dict[int, bytes]:
    """The shares of a member's secret that the collector was told in a round."""
    found = {}
    for holder, gathering, message in bench.told:
        if isinstance(message, SumUnmask) and message.round == number:
            found[holder] = split_row(
                message.shares, 68, gathering.dealers or tuple(range(n)), "shares"
            )[i][:SHARE_BYTES]
    return found


def test_recovery_in_one_round_does_not_open_earlier_round() -> None:
    """Member 4 survives round 1, so its own seed is known; it drops out of round 2, so its mask key
    is known: of that round only.
    """
    bench = honest()
    first = next(
        sitting
        for to, sitting, message in bench.shown
        if to == 4 and isinstance(message, SumKeyList)
    )
    seed, mask_key = (recombine_secret(shares_of(4, number, bench, 5), 4) for number in (1, 2))
    assert seed == first.own
    assert opened(4, MemberSecrets(first.mask, seed, b""), 1, bench) == STUDY.values(4).tolist(), (
        "with both of one round it would be open"
    )
    assert opened(4, MemberSecrets(mask_key, seed, b""), 1, bench) != STUDY.values(4).tolist()


@pytest.mark.parametrize("phase", ["keys", "shares", "masked", "agreed", "unmask"])
def test_aborted_round_does_not_open_a_vector(phase: str) -> None:
    """Every byte that the collector was told: no secret is in it, no share of a mask key, and of
    each own seed fewer shares than needed.
    """
    bench = Bench(STUDY)
    assert bench.play(gone={0: phase, 1: phase}).failure is not None
    told = b"".join(encode(message) for _, _, message in bench.told)
    began = {to: sitting for to, sitting, message in bench.shown if isinstance(message, SumKeyList)}
    held = {
        to: sitting
        for to, sitting in (
            *((to, sitting) for to, sitting, _ in bench.shown),
            *bench.sittings.items(),
        )
        if sitting and sitting.shares
    }
    assert held.keys() == (set(range(5)) if phase in ("masked", "agreed", "unmask") else set())
    for sitting in began.values():
        assert not any(secret in told for secret in sitting.secrets)
    for owner in range(5):
        plain = {
            holder: sitting.shares[owner]
            for holder, sitting in held.items()
            if owner in sitting.dealers
        }
        own = {
            holder: shares[:SHARE_BYTES]
            for holder, shares in plain.items()
            if shares[:SHARE_BYTES] in told
        }
        assert not any(shares[SHARE_BYTES:] in told for shares in plain.values())
        assert len(own) == (3 if phase == "unmask" else 0)
        with pytest.raises(RemoteProtocolError, match="SUM-003"):
            recombine_secret(own, STUDY.threshold)


def split_view(study: SumStudy, victim: int, colluders: set[int], first: set[int]) -> bool:
    """Whether a collector that shows some members a list with the victim on it, and others one
    without, gets both of its secrets.
    """
    bench = Bench(study)
    bench.play(until="agreed")
    everyone = tuple(range(study.n_members))
    without = tuple(i for i in everyone if i != victim)
    context = study.terms.make_context(1, study.query(1))
    own: dict[int, bytes] = {}
    masks: dict[int, bytes] = {}
    for survivors, found, offset in ((everyone, own, 0), (without, masks, SHARE_BYTES)):
        public = SumSurvivors(study=study.digest, round=1, survivors=survivors)
        signed: dict[int, Any] = {
            i: study.identity(i).sign(encode_survivors_statement(context, survivors, everyone))
            for i in colluders
        }
        signing: dict[int, MemberState] = {}
        for i in everyone:
            if i not in colluders and (i in first) == (survivors == everyone):
                sitting = next(
                    s for to, s, m in bench.shown if to == i and isinstance(m, SumSurvivors)
                )
                signing[i], (send,) = bench.members[i].handle_message(
                    sitting, public, SeededEntropy(1)
                )
                signed[i] = send.message.signature  # type: ignore[attr-defined]
        signers = tuple(sorted(signed))
        signatures = b"".join(signed[i] for i in signers)
        agreement = SumAgreement(
            study=study.digest, round=1, survivors=survivors, signers=signers, signatures=signatures
        )
        for i in colluders:
            held = next(s for to, s, m in bench.shown if to == i and isinstance(m, SumSurvivors))
            found[i] = held.shares[victim][offset : offset + SHARE_BYTES]
        for i, sitting in signing.items():
            try:
                _, (send,) = bench.members[i].handle_message(sitting, agreement, SeededEntropy(1))
            except RemoteProtocolError:
                continue
            found[i] = split_row(send.message.shares, 68, everyone, "shares")[victim][:SHARE_BYTES]  # type: ignore[attr-defined]
    return len(own) >= study.threshold and len(masks) >= study.threshold


def test_two_survivor_lists_do_not_open_a_vector_if_threshold_is_valid() -> None:
    """With one colluder of five, t = 4 has 2 t > N + C. With one of three, t = 2 has not, and there
    the attack works.
    """
    assert split_view(SumStudy(n_members=3, threshold=2), victim=0, colluders={2}, first={0})
    for first in ({0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}):
        assert not split_view(STUDY, victim=0, colluders={4}, first=first)
