"""The aggregator of variant paper against holders that do not keep to the rules: they are named and left out, and the others go on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from machine_runs import before
from pfds_sharing import NAMES, STUDIES, LoggedAggregator, logged, same_release
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.protocols.base import EVERYONE, START, Abort, Finish, Received, Send, Started, Tick, WakeAt
from shoal.protocols.pfds.messages import Data, Ended, Label, LeafLabels, Leaves, Left, LevelCounts, PassedOn, Splits
from shoal.protocols.pfds.sharing import PublishedTrees
from shoal.protocols.pfds.sharing_aggregator import NO_DATA, NO_TREE, Gathering, SharingAggregator
from toy.garbage import survives_garbage

LATER = timedelta(minutes=1)
NEVER = timedelta(days=1)


def begun(name: str = "classes") -> tuple[LoggedAggregator, Gathering]:
    aggregator = logged(name)[0]
    state, effects = aggregator.step(aggregator.initial(), Started(), START, SeededEntropy(1))
    assert effects == (WakeAt(START + LATER),)
    return aggregator, state


def told(aggregator: LoggedAggregator, kind: Any, sender: str | None = None) -> list[tuple[str, Any]]:
    """Who sent what in the honest run."""
    given = [one for _, one in aggregator.log if isinstance(one, Received)]
    return [(one.sender, one.message) for one in given if isinstance(one.message, kind) and sender in (None, one.sender)]


def step(aggregator: LoggedAggregator, state: Gathering, message: Message, sender: str) -> tuple[Gathering, tuple[Any, ...]]:
    state, effects = aggregator.step(state, Received(sender, message), START, SeededEntropy(1))
    return load(dump(state), Gathering), effects


def steps(aggregator: LoggedAggregator, state: Gathering, messages: list[tuple[str, Any]]) -> tuple[Gathering, list[Any]]:
    done: list[Any] = []
    for sender, message in messages:
        state, effects = step(aggregator, state, message, sender)
        done += effects
    return state, done


def refusal(aggregator: LoggedAggregator, state: Gathering, message: Message, sender: str) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        step(aggregator, state, message, sender)
    return caught.value.code


def tick(aggregator: LoggedAggregator, state: Gathering, later: timedelta) -> tuple[Gathering, tuple[Any, ...]]:
    return aggregator.step(state, Tick(), START + later, SeededEntropy(1))


def messages_of(effects: Any, kind: Any) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, Send) and effect.to == EVERYONE and isinstance(effect.message, kind)]


# The course.


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_begins_once_and_comes_to_the_same_end_whatever_the_order(name: str) -> None:
    aggregator, state = begun(name)
    assert aggregator.step(state, Started(), START, SeededEntropy(1)) == (state, ()), "it went down, and is up again"
    answers, data = told(aggregator, Splits | Leaves | LevelCounts), told(aggregator, Data)
    for order in (answers, answers[::-1], answers[7:] + answers[:7]):
        labelling, effects = steps(aggregator, state, order)
        assert messages_of(effects, Label) == [Label(study=aggregator.study, holders=NAMES)]
        ended, more = steps(aggregator, labelling, data[::-1])
        (finish,) = (effect for effect in more if isinstance(effect, Finish))
        assert isinstance(finish.result, PublishedTrees) and same_release(finish.result, logged(name)[2])
        assert messages_of(more, Ended) == [Ended(study=aggregator.study, holders=NAMES)]
        assert ended.is_over


def test_a_tree_is_passed_on_when_it_is_whole_and_never_in_part() -> None:
    aggregator, state = begun()
    splits, leaves = told(aggregator, Splits, "peer-2"), told(aggregator, Leaves, "peer-2")
    state, effects = steps(aggregator, state, [*leaves, *splits[1:]])
    assert effects == []
    state, effects = steps(aggregator, state, splits[:1])
    assert [type(piece.shared) for piece in messages_of(effects, PassedOn)] == [Splits, Splits, Splits, LeafLabels]
    assert [piece.shared.level for piece in messages_of(effects, PassedOn)[:3]] == [1, 2, 3]
    assert {piece.holder for piece in messages_of(effects, PassedOn)} == {"peer-2"}
    assert step(aggregator, state, splits[0][1], "peer-2") == (state, ()), "what comes twice is not passed on twice"
    counts = told(aggregator, LevelCounts, "peer-2")
    assert counts and steps(aggregator, state, counts) == (state, []), "counts go no further"


def test_data_is_passed_on_as_it_comes_and_once() -> None:
    aggregator, _ = begun()
    state, _ = before(aggregator, Data)
    (first, *_) = told(aggregator, Data)
    after, effects = steps(aggregator, state, [first])
    assert messages_of(effects, PassedOn) == [PassedOn(study=aggregator.study, holder=first[0], shared=first[1])]
    assert steps(aggregator, after, [first]) == (after, [])


def test_when_the_time_is_up_it_goes_on_with_enough_trees() -> None:
    aggregator, state = begun()
    enough = [one for one in told(aggregator, Splits | Leaves) if one[0] != "peer-1"]
    state, effects = steps(aggregator, state, enough)
    assert not messages_of(effects, Label)
    assert tick(aggregator, state, LATER / 2) == (state, ())
    state, effects = tick(aggregator, state, LATER)
    others = ("peer-0", "peer-2", "peer-3")
    assert effects == (Send(EVERYONE, Label(study=aggregator.study, holders=others)), WakeAt(START + 2 * LATER))
    late = told(aggregator, Splits | Leaves, "peer-1")
    assert steps(aggregator, state, late) == (state, []), "too late"
    assert refusal(aggregator, state, told(aggregator, Data, "peer-1")[0][1], "peer-1") == "PFDS-003"

    state, _ = steps(aggregator, state, told(aggregator, Data, "peer-3"))
    assert tick(aggregator, state, LATER) == (state, ())
    state, (ended, finish) = tick(aggregator, state, 2 * LATER)
    reasons = {"peer-0": NO_DATA, "peer-1": NO_TREE, "peer-2": NO_DATA}
    left = tuple(Left(holder=name, reason=reason) for name, reason in reasons.items())
    assert ended == Send(EVERYONE, Ended(study=aggregator.study, holders=("peer-3",), left_out=left))
    assert tuple(finish.result.trees) == others and tuple(finish.result.datasets) == ("peer-3",) and finish.result.left_out == left


def test_too_few_trees_end_the_study_once_everyone_had_time_to_hear_why() -> None:
    aggregator, state = begun()
    some = [one for one in told(aggregator, Splits | Leaves) if one[0] in ("peer-1", "peer-2")]
    state, _ = steps(aggregator, state, [*some, *told(aggregator, Splits, "peer-0")])
    state, (send, wake) = tick(aggregator, state, LATER)
    assert "2 holders shared a whole tree in time; 3 are needed" in send.message.reason
    assert wake == WakeAt(START + 2 * LATER) and state.is_over
    assert tick(aggregator, state, LATER * 1.5) == (state, ())
    _, (ending,) = tick(aggregator, load(dump(state), Gathering), 2 * LATER)
    assert isinstance(ending, Abort) and ending.error.code == "PFDS-004"
    assert steps(aggregator, state, told(aggregator, Leaves, "peer-0")) == (state, [])


def test_a_tick_before_the_beginning_or_after_the_end_is_borne() -> None:
    aggregator, _ = begun()
    assert tick(aggregator, aggregator.initial(), LATER) == (aggregator.initial(), ())
    over = aggregator.initial().replace(is_over=True)
    assert tick(aggregator, over, NEVER) == (over, ())
    assert steps(aggregator, over, told(aggregator, Data)) == (over, [])


# Holders that do not keep to the rules.


def test_strangers_and_messages_that_no_holder_sends_are_refused() -> None:
    aggregator, state = begun()
    (_, splits), *_ = told(aggregator, Splits)
    assert refusal(aggregator, state, splits, "reader-0") == refusal(aggregator, state, splits, "stranger") == "PROTO-003"
    assert refusal(aggregator, state, Label(study=aggregator.study, holders=NAMES), "peer-0") == "PROTO-003"
    assert refusal(aggregator, state, Ended(study=aggregator.study), "peer-0") == "PROTO-003"
    assert refusal(aggregator, state, told(aggregator, Data)[0][1], "peer-0") == "PFDS-003", "no tree, no data"


@pytest.mark.parametrize("which", ["attributes", "values", "leaves", "level"])
def test_a_tree_that_cannot_be_leaves_its_holder_out_and_the_others_go_on(which: str) -> None:
    aggregator, state = begun()
    state, _ = steps(aggregator, state, [one for one in told(aggregator, Splits | Leaves) if one[0] != "peer-0"])
    splits = [message for _, message in told(aggregator, Splits, "peer-0")]
    ((_, leaves),) = told(aggregator, Leaves, "peer-0")
    if which == "leaves":
        state, _ = steps(aggregator, state, [("peer-0", message) for message in splits])
        short = leaves.replace(counts=Array.of(np.zeros(leaves.counts.count - 2, np.int32)))
        odd = leaves.replace(counts=Array.of(np.zeros(leaves.counts.count - 1, np.int32)))
        assert refusal(aggregator, state, short, "peer-0") == refusal(aggregator, state, odd, "peer-0") == "PFDS-101"
    elif which == "level":
        for level in (0, 4, 999):
            assert refusal(aggregator, state, splits[0].replace(level=level), "peer-0") == "PFDS-101"
    else:
        wrong = Array.of(np.array([7], np.int16)) if which == "attributes" else Array.of(np.array([-1]).astype(np.int64) << 52)
        bad = splits[0].replace(**{which: wrong})
        state, effects = steps(aggregator, state, [("peer-0", message) for message in (bad, *splits[1:])])
        assert effects == []
        assert refusal(aggregator, state, leaves, "peer-0") in ("PFDS-101", "MSG-005")
    state, (send, _) = tick(aggregator, state, LATER)
    assert send.message == Label(study=aggregator.study, holders=NAMES[1:])


def test_data_that_cannot_be_is_left_out_and_its_tree_still_labels() -> None:
    aggregator, _ = begun()
    state, _ = before(aggregator, Data)
    sent = dict(told(aggregator, Data))
    bad = sent["peer-0"].replace(labels=Array.of(np.full(sent["peer-0"].n_rows, 2, np.int16)))
    assert refusal(aggregator, state, bad, "peer-0") == "PFDS-102"
    state, effects = steps(aggregator, state, [(name, sent[name]) for name in NAMES[1:]])
    assert not messages_of(effects, Ended)
    _, (_, finish) = tick(aggregator, state, LATER)
    assert finish.result.left_out == (Left(holder="peer-0", reason=NO_DATA),) and tuple(finish.result.trees) == NAMES


def test_a_second_tree_or_dataset_is_refused() -> None:
    aggregator, state = begun()
    one, other = told(aggregator, Leaves, "peer-0")[0][1], told(aggregator, Leaves, "peer-1")[0][1]
    state, _ = step(aggregator, state, one, "peer-0")
    assert refusal(aggregator, state, other, "peer-0") == "PFDS-003"
    state, _ = before(aggregator, Data)
    sent = dict(told(aggregator, Data))
    state, _ = step(aggregator, state, sent["peer-0"], "peer-0")
    assert refusal(aggregator, state, sent["peer-1"], "peer-0") == "PFDS-003"


def test_garbage_is_borne_in_every_field() -> None:
    aggregator, state = begun()
    almost, _ = before(aggregator, Leaves, -1)
    labelling, _ = before(aggregator, Data)
    samples = [told(aggregator, kind, "peer-0")[0][1] for kind in (Splits, Leaves, LevelCounts, Data)]
    assert survives_garbage(aggregator, [aggregator.initial(), state, almost, labelling], samples, "peer-0") > 30


@pytest.mark.parametrize("names", [NAMES[:3], (*NAMES, "peer-4")])
def test_it_is_given_all_holders_of_the_study(names: tuple[str, ...]) -> None:
    with pytest.raises(SpecError, match=f"PFDS-005  {len(names)} holders were given to a study that has n_holders = 4"):
        SharingAggregator(STUDIES["classes"], bytes(32), names, LATER)
