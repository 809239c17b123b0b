"""What the parties of a joint computation sign and seal: their keys of a round, and the shares of scores that they are dealt."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.crypto.boxes import open_box, seal
from shoal.crypto.context import Context, Keys
from shoal.crypto.dealing import check_keys
from shoal.crypto.roster import Identity, Roster, misfit
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.codec import encode
from shoal.protocols.joint import dealing
from shoal.protocols.sdq.messages import Ask, Contributions, JointKeys, PartyKey, SealedBox
from shoal.protocols.sdq.params import Ints, Params, committee_size
from shoal.protocols.sums.terms import Terms


def check_terms(params: Params, terms: Terms) -> None:
    """Refuse a roster and a threshold that do not hold what the study promises.

    Notes
    -----
    Ref: errata S-02, S-05, S-06. A selected database that drops out takes the noise with it, so nobody may; colluders that are half of a
    committee know what it computes, and scores in the open tell more than the choice that their price is for; and two lists of survivors
    must have an honest signer in common.
    """
    n, c, is_local = len(terms.roster), params.max_colluders, params.trust == "local"
    is_possible = n == params.n_databases
    is_possible &= is_local or (terms.threshold == params.minimum and 2 * params.minimum > n + c)
    is_possible &= not has_choices(params) or (not is_local and committee_size(c) <= n)
    if params.noise == "two-selected":
        is_possible &= not is_local and params.variant == "paper" and params.minimum == n and 2 * c < n
    if not is_possible:
        raise LocalProtocolError(
            "PROTO-001",
            f"{n} databases, of which {terms.threshold} make a sum, cannot keep what a study of {params.n_databases} promises.",
            why="Its roster, minimum and colluders do not fit together.",
        )


def has_choices(params: Params) -> bool:
    """Whether a committee chooses splits in some rounds."""
    return params.variant == "plus" and params.learner == "tree" and params.choice == "mpc"


def n_parties(params: Params, is_choice: bool) -> int:
    """How many compute: a committee chooses splits, all databases select two among them."""
    return committee_size(params.max_colluders) if is_choice else params.n_databases


def level_of(question: str) -> str:
    """Two selected: the question with which two are selected. It is the question itself; but the answers of a level follow its sizes."""
    return question.replace("answers/", "sizes/")


def digest_of(ask: Ask) -> bytes:
    """What is asked, in 32 bytes: everyone computes it from the message that they were given."""
    return hashlib.sha256(encode(ask)).digest()


def key_statement(context: Context, member: int, box: bytes) -> bytes:
    """What a party signs with its key of a round."""
    return context.bind("party's key", member, box)


def check_key(key: PartyKey, context: Context, roster: Roster) -> None:
    """Refuse a key that its party did not sign for this round, or with which nothing secret can be agreed on."""
    roster.check(key.party, key.signature, key_statement(context, key.party, key.box))
    check_keys(Keys(key.box, key.box, b""), key.party)


def read_keys(message: JointKeys, context: Context, roster: Roster, n: int) -> dict[int, Keys]:
    """The keys of as many parties as are due, if they are theirs; otherwise an error about whoever passed them on.

    Notes
    -----
    Which members sit on a committee is for the coordinator to say, whom nobody trusts, since only it knows who is there. No more than C
    databases collude in all, so no more than C sit on any committee of 2C + 1, and C shares of what a dealer deals tell nothing. To show
    different committees to different databases does not help: what is dealt to one cannot be used by another (`seated`), parties that
    hold themselves for different committees cannot read each other, and a database deals once.
    """
    parties = [key.party for key in message.keys]
    if len(parties) != n or parties != sorted(set(parties)):
        raise RemoteProtocolError("SDQ-003", f"The keys of round {message.round} are not those of {n} parties, each once and in order.")
    for key in message.keys:
        check_key(key, context, roster)
    return keys_of(message)


def seated(context: Context, keys: Sequence[PartyKey]) -> Context:
    """The context of a committee, in which scores are dealt to it.

    Notes
    -----
    Ref: errata S-06. A share is of use at one point only. Could it be passed on to another committee, in which the same party has another
    point, colluders would have something computed of which the price says nothing.
    """
    seats = (part for key in keys for part in (key.party, key.box))
    return replace(context, query=hashlib.sha256(context.bind("committee", *seats)).digest())


def keys_of(message: JointKeys) -> dict[int, Keys]:
    """Keys that were checked, by party."""
    return {key.party: Keys(b"", key.box, b"") for key in message.keys}


def seal_scores(
    scores: Ints, context: Context, me: int, identity: Identity, keys: Mapping[int, Keys], n_dealers: int, entropy: Entropy
) -> tuple[SealedBox, ...]:
    """A database's noisy scores in threshold shares, each sealed for one party and signed. Here and below the context is `seated`."""
    dealt = dealing.split(scores.tolist(), len(keys), entropy, n_dealers)
    boxes = []
    for (party, theirs), shares in zip(keys.items(), dealt, strict=True):
        box = seal(theirs.box, dealing.pack(shares), _box_info(context, me, party))
        boxes.append(SealedBox(member=party, box=box, signature=identity.sign(_box_statement(context, me, party, theirs.box, box))))
    return tuple(boxes)


def check_box(box: SealedBox, context: Context, roster: Roster, dealer: int, party: int, public: bytes) -> None:
    """Whether a box is the dealer's, for this party and its key of this round."""
    roster.check(dealer, box.signature, _box_statement(context, dealer, party, public, box.box))


def check_contributions(
    message: Contributions, context: Context, roster: Roster, party: int, public: bytes, minimum: int
) -> tuple[int, ...]:
    """Whose scores count; otherwise an error about whoever passed them on."""
    dealers = tuple(box.member for box in message.boxes)
    if len(dealers) < minimum or list(dealers) != sorted(set(dealers)):
        raise RemoteProtocolError(
            "SDQ-003",
            f"The scores of {len(dealers)} databases came for round {message.round}; {minimum} are needed, each once and in order.",
            why="Fewer do not hold as much noise as was promised.",
        )
    for box in message.boxes:
        check_box(box, context, roster, box.member, party, public)
    return dealers


def sum_shares(message: Contributions, context: Context, party: int, private: bytes, n_scores: int) -> tuple[int, ...]:
    """A party's shares of the sums of all scores; a `MemberError` names the dealer of a box that it has signed and that cannot be used."""
    dealt = []
    for box in message.boxes:
        try:
            dealt.append(dealing.unpack(open_box(private, box.box, _box_info(context, box.member, party)), n_scores))
        except RemoteProtocolError as error:
            raise misfit(box.member, f"The scores that member {box.member} has dealt cannot be used.", error.what) from None
    return dealing.add(dealt)


def _box_info(context: Context, dealer: int, party: int) -> bytes:
    return context.bind("scores", dealer, party)


def _box_statement(context: Context, dealer: int, party: int, public: bytes, box: bytes) -> bytes:
    return context.bind("sealed scores", dealer, party, public, box)
