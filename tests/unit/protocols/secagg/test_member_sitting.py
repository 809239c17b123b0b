from __future__ import annotations

from shoal.messages.codec import dump
from shoal.protocols.secagg.member import MemberState
from shoal.protocols.secagg.messages import SumAgreement, SumBoxes, SumKeyList, SumSurvivors
from tests.support.toy.sums import Bench, SumStudy

STUDY = SumStudy(n_members=3, threshold=2)


def test_member_state_erases_secrets_when_no_longer_needed() -> None:
    bench = Bench(STUDY)
    bench.play()
    began, dealt, masked, agreed = (
        bench.before(kind, 0)[0] for kind in (SumKeyList, SumBoxes, SumSurvivors, SumAgreement)
    )
    assert [sitting.phase for sitting in (began, dealt, masked, agreed)] == [
        "keys",
        "shares",
        "masked",
        "agreed",
    ]
    assert all(len(one) == 32 for sitting in (began, dealt) for one in sitting.secrets)
    assert began.secrets == dealt.secrets and len(set(began.secrets)) == 3
    assert dealt.kept and not began.kept
    for sitting in (masked, agreed):
        assert not any(sitting.secrets) and not sitting.kept and len(sitting.shares) == 3
        assert not any(one in dump(sitting) for one in began.secrets)
    over = bench.sittings[0]
    assert over is not None and over == MemberState(round=1, query=STUDY.query(1), phase="over")
    assert over.is_over and not over.is_ready and over.public_keys == {}


def test_member_state_repr_hides_secrets() -> None:
    bench = Bench(STUDY)
    bench.play()
    for _, sitting, _ in bench.shown:
        for name in ("mask", "own", "box", "kept", "shares"):
            assert f"{name}=" not in repr(sitting).replace("kept_", "")
        assert all(
            repr(one)[2:-1] not in repr(sitting)
            for one in (*sitting.secrets, *sitting.shares)
            if one
        )
