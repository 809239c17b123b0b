"""Runner and workers do not block each other, and no worker outlives its runner."""

from __future__ import annotations

import importlib.util
import os
import signal
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError, UsageError, format_install_command
from shoal.mpyc import runner
from shoal.mpyc.runner import MPyCWorkers
from shoal.protocols.base import Compute, Emitted, Feed
from shoal.protocols.mpc import shares
from shoal.protocols.mpc.shares import MAX_PAIR_BYTES
from tests.support.mpc import TestChildren, computing, finish

SHARES = shares.split([4, 9, -2], 3, SeededEntropy("children"))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_without_mpyc_raise_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        MPyCWorkers()
    assert (caught.value.code, caught.value.fix) == ("USAGE-002", format_install_command("mpc"))


def test_collect_does_not_wait_for_waiting_worker() -> None:
    """Two of three parties have begun: both send what they can, and then wait for the third."""
    with MPyCWorkers() as children:
        for me in (0, 1):
            children.begin(f"peer-{me}", Compute("joint/1", "argmax", me, 3, SHARES[me]))
        assert finish_without(children, 2) == {}
        assert len(children.pids) == 2


def finish_without(children: MPyCWorkers, gone: int) -> dict[str, Any]:
    ends: dict[str, Any] = {}
    while told := children.collect():
        for owner, progress in told:
            if not isinstance(progress, Emitted):
                ends[owner] = progress
            elif progress.to != gone:
                children.feed(
                    f"peer-{progress.to}", Feed(progress.task, int(owner[-1]), progress.payload)
                )
    return ends


def test_killed_worker_is_reported_broken_and_no_process_remains() -> None:
    with computing("argmax", SHARES, MPyCWorkers) as children:
        pids = dict(children.pids)
        os.kill(pids["peer-1", "joint/1"], signal.SIGKILL)
        ends = finish(children)
        assert isinstance(ends["peer-1"], LocalProtocolError)
        assert ends["peer-1"].code == "JOINT-001"
        assert "died" in ends["peer-1"].what
        assert ends.keys() == {"peer-1"}, "the others wait, and are told nothing"
        assert not is_running(pids["peer-1", "joint/1"])
    assert not any(map(is_running, pids.values()))


def test_collect_detects_worker_that_dies_while_waiting() -> None:
    with MPyCWorkers() as children:
        children.begin("peer-0", Compute("joint/1", "argmax", 0, 3, SHARES[0]))
        assert finish_without(children, 1) == {}
        (pid,) = children.pids.values()
        os.kill(pid, signal.SIGKILL)
        while not (told := children.collect()):
            pass
    assert [(owner, progress.error.code) for owner, progress in told] == [("peer-0", "JOINT-001")]


@pytest.mark.parametrize(
    ("program", "word"), [("dies", "died"), ("lies", "died"), ("argmax", "failed with")]
)
def test_worker_that_exits_is_reported_broken(program: str, word: str) -> None:
    with computing(program, [()]) as children:
        ends = finish(children)
    assert word in ends["peer-0"].what


def test_worker_that_exceeds_turn_timeout_is_killed() -> None:
    with computing("stuck", [()], turn_timeout=0.5) as children:
        (pid,) = children.pids.values()
        assert "0.5 s" in finish(children)["peer-0"].what
        assert not is_running(pid)


def test_end_kills_workers_of_owner() -> None:
    with computing("argmax", SHARES, MPyCWorkers) as children:
        pids = dict(children.pids)
        while not (told := children.collect()):
            pass
        owner = told[0][0]
        for name in ("peer-0", "peer-1", "peer-2"):
            if name != owner:
                children.end(name)
        children.end(owner)
        assert (children.collect(), children.pids) == ([], {})
        assert not any(map(is_running, pids.values()))
        children.feed(owner, Feed("joint/1", 2, b"late"))


def test_begin_rejects_task_that_has_begun() -> None:
    with computing("argmax", SHARES[:1]) as children, pytest.raises(LocalProtocolError) as caught:
        children.begin("peer-0", Compute("joint/1", "argmax", 0, 3, SHARES[0]))
    assert caught.value.code == "PROTO-001"


def test_unusable_payload_blames_its_party() -> None:
    for garbage in (b"\x00", struct.pack("<qI", 1, 9) + b"short", struct.pack("<qI", 1, 0) * 2):
        with MPyCWorkers() as children:
            children.begin("peer-0", Compute("joint/1", "argmax", 0, 3, SHARES[0]))
            children.feed("peer-0", Feed("joint/1", 2, garbage))
            broken = finish_without(children, 1)["peer-0"]
        assert isinstance(broken.error, RemoteProtocolError)
        assert "Party 2" in broken.error.what and broken.party == 2


def test_party_that_sends_without_end_is_refused_before_memory_is_full() -> None:
    """It sends messages for steps that nobody waits for, each as long as a frame may be."""
    size = 1 << 22
    with MPyCWorkers() as children:
        children.begin("peer-0", Compute("joint/1", "argmax", 0, 3, SHARES[0]))
        for step in range(1_000):
            payload = struct.pack("<qI", step, size - 12) + bytes(size - 12)
            children.feed("peer-0", Feed("joint/1", 2, payload))
            if broken := finish_without(children, 1):
                break
    assert (step + 1) * size <= MAX_PAIR_BYTES + size
    assert isinstance(broken["peer-0"].error, RemoteProtocolError) and broken["peer-0"].party == 2


def test_feed_limits_bytes_that_wait_for_busy_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAX_WAITING_BYTES", 1_000)
    with MPyCWorkers() as children:
        children.begin("peer-0", Compute("joint/1", "argmax", 0, 3, SHARES[0]))
        for party in (1, 2):
            children.feed("peer-0", Feed("joint/1", party, bytes(600)))
        broken = finish_without(children, 1)["peer-0"]
    assert broken.party == 2 and broken.error.code == "JOINT-002"


def test_shares_of_wrong_size_break_computation() -> None:
    def cut(sender: int, emitted: Emitted) -> bytes:
        step, size = struct.unpack_from("<qI", emitted.payload)
        return (
            struct.pack("<qI", step, 1) + b"\x01" + emitted.payload[12 + size :]
            if sender == 2
            else emitted.payload
        )

    with computing("argmax", SHARES) as children:
        ends = finish(children, cut)
    assert {error.code for error in ends.values()} == {"JOINT-001"}


def test_runner_and_worker_do_not_block_each_other() -> None:
    with computing("torrent", [(), ()]) as children:
        assert finish(children) == {"peer-0": 3 << 20, "peer-1": 1 << 20}


def test_runner_feeds_more_than_pipe_holds_to_busy_worker() -> None:
    """The messages are of steps that never happen; then the computation continues."""
    with computing("argmax", SHARES) as children:
        for number in range(40):
            children.feed(
                "peer-0", Feed("joint/1", 1, struct.pack("<qI", number, 1 << 17) + bytes(1 << 17))
            )
        assert finish(children) == {f"peer-{i}": 1 for i in range(3)}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_worker_receives_inputs_through_pipe_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "hunter2")
    with MPyCWorkers() as children:
        children.begin("peer-0", Compute("joint/1", "argmax", 0, 3, (1234567890123456789,) * 2))
        assert finish_without(children, 1) == {}
        (pid,) = children.pids.values()
        command, environment = (
            Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")
        )
        assert b"1234567890" not in command + environment
        assert {entry.split(b"=")[0] for entry in environment.split(b"\0") if entry} == {
                b"PYTHONPATH", b"MPYC_NOUVLOOP", b"MPYC_NONUMPY", b"OMP_NUM_THREADS",
            }  # fmt: skip


def test_workers_run_two_tasks_of_owner() -> None:
    with TestChildren() as children:
        for task in ("joint/1", "joint/2"):
            for me in range(3):
                children.begin(f"peer-{me}", Compute(task, "argmax", me, 3, SHARES[me]))
        ends = []
        while told := children.collect():
            for owner, progress in told:
                if isinstance(progress, Emitted):
                    children.feed(
                        f"peer-{progress.to}", Feed(progress.task, int(owner[-1]), progress.payload)
                    )
                else:
                    ends.append((progress.task, progress.result))
    assert sorted(ends) == [("joint/1", (1,))] * 3 + [("joint/2", (1,))] * 3
