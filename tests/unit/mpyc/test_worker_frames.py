"""A stream of bytes is split into its frames, independently of how it is cut."""

from __future__ import annotations

import pytest

from shoal.mpyc.worker import MAX_BYTES, FrameBuffer, FrameKind, WorkerTask, encode_frame

SENT = [(FrameKind.EMIT, 2, b"one"), (FrameKind.WAITING, 0, b""), (FrameKind.DONE, 999, bytes(300))]


@pytest.mark.parametrize("step", [1, 2, 7, 8, 1000])
def test_frame_buffer_returns_whole_frames_for_any_split(step: int) -> None:
    stream, frames = b"".join(encode_frame(*sent) for sent in SENT), FrameBuffer()
    assert [
        cut
        for start in range(0, len(stream), step)
        for cut in frames.extract(stream[start : start + step])
    ] == SENT


def test_frame_buffer_rejects_invalid_frames() -> None:
    for wrong in (
        encode_frame(FrameKind.EMIT, 0, b"")[:4] + b"\x63\x00\x00",
        (MAX_BYTES + 1).to_bytes(4, "little") + b"\x03\x00\x00",
    ):
        with pytest.raises(ValueError, match=r"frame|Kind"):
            list(FrameBuffer().extract(wrong))


def test_worker_task_survives_round_trip() -> None:
    task = WorkerTask("argmax", 4, 7, (0, 1, (1 << 127) - 2))
    ((kind, me, payload),) = FrameBuffer().extract(task.to_bytes())
    assert (kind, WorkerTask.from_bytes(me, payload)) == (FrameKind.BEGIN, task)
    assert WorkerTask.from_bytes(
        0,
        encode_frame(*next(iter(FrameBuffer().extract(WorkerTask("select", 0, 3, ()).to_bytes()))))[
            7:
        ],
    ) == WorkerTask("select", 0, 3, ())
