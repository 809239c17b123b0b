"""The aggregator of variant paper with misbehaving holders.

It names and excludes them, and the study continues with the others.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.protocols.base import (
    EVERYONE,
    START,
    Abort,
    Finish,
    Received,
    Send,
    Started,
    Tick,
    WakeAt,
)
from shoal.protocols.pfds.messages import (
    ForwardedPiece,
    LabellingHolders,
    LeafCounts,
    LeafLabels,
    LeftOutHolder,
    LevelCounts,
    LevelSplits,
    PFDSStudyEnd,
    SyntheticData,
)
from shoal.protocols.pfds.paper.aggregator import (
    NO_DATA,
    NO_TREE,
    PaperAggregator,
    PFDSPaperAggregatorState,
    PFDSPaperResult,
)
from tests.support.machines import before
from tests.support.pfds_paper import NAMES, STUDIES, LoggedAggregator, logged, same_release
from tests.support.toy.garbage import survives_garbage

LATER = timedelta(minutes=1)
NEVER = timedelta(days=1)


def begin_study(name: str = "classes") -> tuple[LoggedAggregator, PFDSPaperAggregatorState]:
    aggregator = logged(name)[0]
    state, effects = aggregator.step(aggregator.initial_state(), Started(), START, SeededEntropy(1))
    assert effects == (WakeAt(START + LATER),)
    return aggregator, state


def list_messages(
    aggregator: LoggedAggregator, kind: Any, sender: str | None = None
) -> list[tuple[str, Any]]:
    """Return senders and messages of the honest run."""
    given = [one for _, one in aggregator.log if isinstance(one, Received)]
    return [
        (one.sender, one.message)
        for one in given
        if isinstance(one.message, kind) and sender in (None, one.sender)
    ]


def step(
    aggregator: LoggedAggregator, state: PFDSPaperAggregatorState, message: Message, sender: str
) -> tuple[PFDSPaperAggregatorState, tuple[Any, ...]]:
    state, effects = aggregator.step(state, Received(sender, message), START, SeededEntropy(1))
    return load(dump(state), PFDSPaperAggregatorState), effects


def steps(
    aggregator: LoggedAggregator, state: PFDSPaperAggregatorState, messages: list[tuple[str, Any]]
) -> tuple[PFDSPaperAggregatorState, list[Any]]:
    done: list[Any] = []
    for sender, message in messages:
        state, effects = step(aggregator, state, message, sender)
        done += effects
    return state, done


def catch_code(
    aggregator: LoggedAggregator, state: PFDSPaperAggregatorState, message: Message, sender: str
) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        step(aggregator, state, message, sender)
    return caught.value.code


def tick(
    aggregator: LoggedAggregator, state: PFDSPaperAggregatorState, later: timedelta
) -> tuple[PFDSPaperAggregatorState, tuple[Any, ...]]:
    return aggregator.step(state, Tick(), START + later, SeededEntropy(1))


def list_broadcasts(effects: Any, kind: Any) -> list[Any]:
    return [
        effect.message
        for effect in effects
        if isinstance(effect, Send) and effect.to == EVERYONE and isinstance(effect.message, kind)
    ]


# The sequence of phases.


@pytest.mark.parametrize("name", STUDIES)
def test_result_does_not_depend_on_the_order_of_messages(name: str) -> None:
    aggregator, state = begin_study(name)
    assert aggregator.step(state, Started(), START, SeededEntropy(1)) == (state, ()), (
        "a restart changes nothing"
    )
    answers, data = (
        list_messages(aggregator, LevelSplits | LeafCounts | LevelCounts),
        list_messages(aggregator, SyntheticData),
    )
    for order in (answers, answers[::-1], answers[7:] + answers[:7]):
        labelling, effects = steps(aggregator, state, order)
        assert list_broadcasts(effects, LabellingHolders) == [
            LabellingHolders(study=aggregator.study, holders=NAMES)
        ]
        ended, more = steps(aggregator, labelling, data[::-1])
        (finish,) = (effect for effect in more if isinstance(effect, Finish))
        assert isinstance(finish.result, PFDSPaperResult) and same_release(
            finish.result, logged(name)[2]
        )
        assert list_broadcasts(more, PFDSStudyEnd) == [
            PFDSStudyEnd(study=aggregator.study, holders=NAMES)
        ]
        assert ended.is_over


def test_only_a_whole_tree_is_forwarded() -> None:
    aggregator, state = begin_study()
    splits, leaves = (
        list_messages(aggregator, LevelSplits, "peer-2"),
        list_messages(aggregator, LeafCounts, "peer-2"),
    )
    state, effects = steps(aggregator, state, [*leaves, *splits[1:]])
    assert effects == []
    state, effects = steps(aggregator, state, splits[:1])
    assert [type(piece.shared) for piece in list_broadcasts(effects, ForwardedPiece)] == [
        LevelSplits,
        LevelSplits,
        LevelSplits,
        LeafLabels,
    ]
    assert [piece.shared.level for piece in list_broadcasts(effects, ForwardedPiece)[:3]] == [
        1,
        2,
        3,
    ]
    assert {piece.holder for piece in list_broadcasts(effects, ForwardedPiece)} == {"peer-2"}
    assert step(aggregator, state, splits[0][1], "peer-2") == (state, ()), (
        "repeated pieces are not forwarded again"
    )
    counts = list_messages(aggregator, LevelCounts, "peer-2")
    assert counts and steps(aggregator, state, counts) == (state, []), "counts are not forwarded"


def test_data_is_forwarded_once() -> None:
    aggregator, _ = begin_study()
    state, _ = before(aggregator, SyntheticData)
    (first, *_) = list_messages(aggregator, SyntheticData)
    after, effects = steps(aggregator, state, [first])
    assert list_broadcasts(effects, ForwardedPiece) == [
        ForwardedPiece(study=aggregator.study, holder=first[0], shared=first[1])
    ]
    assert steps(aggregator, after, [first]) == (after, [])


def test_study_continues_with_enough_trees_at_the_deadline() -> None:
    aggregator, state = begin_study()
    enough = [
        one for one in list_messages(aggregator, LevelSplits | LeafCounts) if one[0] != "peer-1"
    ]
    state, effects = steps(aggregator, state, enough)
    assert not list_broadcasts(effects, LabellingHolders)
    assert tick(aggregator, state, LATER / 2) == (state, ())
    state, effects = tick(aggregator, state, LATER)
    others = ("peer-0", "peer-2", "peer-3")
    assert effects == (
        Send(EVERYONE, LabellingHolders(study=aggregator.study, holders=others)),
        WakeAt(START + 2 * LATER),
    )
    late = list_messages(aggregator, LevelSplits | LeafCounts, "peer-1")
    assert steps(aggregator, state, late) == (state, []), "too late"
    assert (
        catch_code(
            aggregator, state, list_messages(aggregator, SyntheticData, "peer-1")[0][1], "peer-1"
        )
        == "PFDS-003"
    )

    state, _ = steps(aggregator, state, list_messages(aggregator, SyntheticData, "peer-3"))
    assert tick(aggregator, state, LATER) == (state, ())
    state, (ended, finish) = tick(aggregator, state, 2 * LATER)
    reasons = {"peer-0": NO_DATA, "peer-1": NO_TREE, "peer-2": NO_DATA}
    left = tuple(LeftOutHolder(holder=name, reason=reason) for name, reason in reasons.items())
    assert ended == Send(
        EVERYONE, PFDSStudyEnd(study=aggregator.study, holders=("peer-3",), left_out=left)
    )
    assert (
        tuple(finish.result.trees) == others
        and tuple(finish.result.datasets) == ("peer-3",)
        and finish.result.left_out == left
    )


def test_too_few_trees_end_the_study_after_the_timeout() -> None:
    aggregator, state = begin_study()
    some = [
        one
        for one in list_messages(aggregator, LevelSplits | LeafCounts)
        if one[0] in ("peer-1", "peer-2")
    ]
    state, _ = steps(aggregator, state, [*some, *list_messages(aggregator, LevelSplits, "peer-0")])
    state, (send, wake) = tick(aggregator, state, LATER)
    assert "2 holders shared a whole tree in time; 3 are needed" in send.message.reason
    assert wake == WakeAt(START + 2 * LATER) and state.is_over
    assert tick(aggregator, state, LATER * 1.5) == (state, ())
    _, (ending,) = tick(aggregator, load(dump(state), PFDSPaperAggregatorState), 2 * LATER)
    assert isinstance(ending, Abort) and ending.error.code == "PFDS-004"
    assert steps(aggregator, state, list_messages(aggregator, LeafCounts, "peer-0")) == (state, [])


def test_tick_before_start_or_after_end_is_ignored() -> None:
    aggregator, _ = begin_study()
    assert tick(aggregator, aggregator.initial_state(), LATER) == (aggregator.initial_state(), ())
    over = aggregator.initial_state().replace(is_over=True)
    assert tick(aggregator, over, NEVER) == (over, ())
    assert steps(aggregator, over, list_messages(aggregator, SyntheticData)) == (over, [])


# Misbehaving holders.


def test_unknown_senders_and_message_types_are_rejected() -> None:
    aggregator, state = begin_study()
    (_, splits), *_ = list_messages(aggregator, LevelSplits)
    assert (
        catch_code(aggregator, state, splits, "reader-0")
        == catch_code(aggregator, state, splits, "stranger")
        == "PROTO-003"
    )
    assert (
        catch_code(
            aggregator, state, LabellingHolders(study=aggregator.study, holders=NAMES), "peer-0"
        )
        == "PROTO-003"
    )
    assert (
        catch_code(aggregator, state, PFDSStudyEnd(study=aggregator.study), "peer-0") == "PROTO-003"
    )
    assert (
        catch_code(aggregator, state, list_messages(aggregator, SyntheticData)[0][1], "peer-0")
        == "PFDS-003"
    ), "no tree, no data"


@pytest.mark.parametrize("which", ["attributes", "values", "leaves", "level"])
def test_impossible_tree_leaves_its_holder_out(which: str) -> None:
    aggregator, state = begin_study()
    state, _ = steps(
        aggregator,
        state,
        [one for one in list_messages(aggregator, LevelSplits | LeafCounts) if one[0] != "peer-0"],
    )
    splits = [message for _, message in list_messages(aggregator, LevelSplits, "peer-0")]
    ((_, leaves),) = list_messages(aggregator, LeafCounts, "peer-0")
    if which == "leaves":
        state, _ = steps(aggregator, state, [("peer-0", message) for message in splits])
        short = leaves.replace(
            counts=Array.from_values(np.zeros(leaves.counts.count - 2, np.int32))
        )
        odd = leaves.replace(counts=Array.from_values(np.zeros(leaves.counts.count - 1, np.int32)))
        assert (
            catch_code(aggregator, state, short, "peer-0")
            == catch_code(aggregator, state, odd, "peer-0")
            == "PFDS-101"
        )
    elif which == "level":
        for level in (0, 4, 999):
            assert (
                catch_code(aggregator, state, splits[0].replace(level=level), "peer-0")
                == "PFDS-101"
            )
    else:
        wrong = (
            Array.from_values(np.array([7], np.int16))
            if which == "attributes"
            else Array.from_values(np.array([-1]).astype(np.int64) << 52)
        )
        bad = splits[0].replace(**{which: wrong})
        state, effects = steps(
            aggregator, state, [("peer-0", message) for message in (bad, *splits[1:])]
        )
        assert effects == []
        assert catch_code(aggregator, state, leaves, "peer-0") in ("PFDS-101", "MSG-005")
    state, (send, _) = tick(aggregator, state, LATER)
    assert send.message == LabellingHolders(study=aggregator.study, holders=NAMES[1:])


def test_impossible_data_is_left_out_and_its_tree_still_labels() -> None:
    aggregator, _ = begin_study()
    state, _ = before(aggregator, SyntheticData)
    sent = dict(list_messages(aggregator, SyntheticData))
    bad = sent["peer-0"].replace(
        labels=Array.from_values(np.full(sent["peer-0"].n_rows, 2, np.int16))
    )
    assert catch_code(aggregator, state, bad, "peer-0") == "PFDS-102"
    state, effects = steps(aggregator, state, [(name, sent[name]) for name in NAMES[1:]])
    assert not list_broadcasts(effects, PFDSStudyEnd)
    _, (_, finish) = tick(aggregator, state, LATER)
    assert (
        finish.result.left_out == (LeftOutHolder(holder="peer-0", reason=NO_DATA),)
        and tuple(finish.result.trees) == NAMES
    )


def test_second_tree_or_dataset_is_rejected() -> None:
    aggregator, state = begin_study()
    one, other = (
        list_messages(aggregator, LeafCounts, "peer-0")[0][1],
        list_messages(aggregator, LeafCounts, "peer-1")[0][1],
    )
    state, _ = step(aggregator, state, one, "peer-0")
    assert catch_code(aggregator, state, other, "peer-0") == "PFDS-003"
    state, _ = before(aggregator, SyntheticData)
    sent = dict(list_messages(aggregator, SyntheticData))
    state, _ = step(aggregator, state, sent["peer-0"], "peer-0")
    assert catch_code(aggregator, state, sent["peer-1"], "peer-0") == "PFDS-003"


def test_aggregator_rejects_or_ignores_garbage() -> None:
    aggregator, state = begin_study()
    almost, _ = before(aggregator, LeafCounts, -1)
    labelling, _ = before(aggregator, SyntheticData)
    samples = [
        list_messages(aggregator, kind, "peer-0")[0][1]
        for kind in (LevelSplits, LeafCounts, LevelCounts, SyntheticData)
    ]
    assert (
        survives_garbage(
            aggregator, [aggregator.initial_state(), state, almost, labelling], samples, "peer-0"
        )
        > 30
    )


@pytest.mark.parametrize("names", [NAMES[:3], (*NAMES, "peer-4")])
def test_aggregator_needs_all_holders_of_the_study(names: tuple[str, ...]) -> None:
    with pytest.raises(
        SpecError,
        match=f"PFDS-005  {len(names)} holders were given to a study that has n_holders = 4",
    ):
        PaperAggregator(STUDIES["classes"], bytes(32), names, LATER)
