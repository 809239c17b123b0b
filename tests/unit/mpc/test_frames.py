"""A stream of bytes is cut into the frames that were put in, wherever it is cut on the way."""

from __future__ import annotations

import pytest

from shoal.mpc.frames import MAX_BYTES, Frames, Kind, Task, frame

SENT = [(Kind.EMIT, 2, b"one"), (Kind.WAITING, 0, b""), (Kind.DONE, 999, bytes(300))]


@pytest.mark.parametrize("step", [1, 2, 7, 8, 1000])
def test_frames_come_out_whole(step: int) -> None:
    stream, frames = b"".join(frame(*sent) for sent in SENT), Frames()
    assert [cut for start in range(0, len(stream), step) for cut in frames.cut(stream[start : start + step])] == SENT


def test_what_is_no_frame_is_refused() -> None:
    for wrong in (frame(Kind.EMIT, 0, b"")[:4] + b"\x63\x00\x00", (MAX_BYTES + 1).to_bytes(4, "little") + b"\x03\x00\x00"):
        with pytest.raises(ValueError, match=r"frame|Kind"):
            list(Frames().cut(wrong))


def test_a_task_comes_back() -> None:
    task = Task("argmax", 4, 7, (0, 1, (1 << 127) - 2))
    ((kind, me, payload),) = Frames().cut(task.to_bytes())
    assert (kind, Task.of(me, payload)) == (Kind.BEGIN, task)
    assert Task.of(0, frame(*next(iter(Frames().cut(Task("select", 0, 3, ()).to_bytes()))))[7:]) == Task("select", 0, 3, ())
