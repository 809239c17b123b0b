"""The Redis instance store: rewrites of its append-only file, and errors."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from shoal.coordinator.ddml.instances.redis import RedisInstanceStore
from shoal.errors import StoreError, UsageError
from tests.support.servers import Redis, free_port, redis
from tests.support.stores import RedisProcess, on_disk, redis_process

STUDY = "5" * 64


@pytest.fixture
def process() -> Iterator[RedisProcess]:
    with redis_process("--appendonly", "yes") as process:
        yield process


def model(value: int) -> bytes:
    return np.full(3, value, "<i4").tobytes()


def hold(store: RedisInstanceStore, seconds: float) -> None:
    """Let rewrites from now on take so long for each key."""
    store._redis.config_set("rdb-key-save-delay", round(1e6 * seconds))


def test_scrub_waits_for_rewrite_and_starts_another(process: RedisProcess) -> None:
    with RedisInstanceStore(process.url) as store, RedisInstanceStore(process.url) as another:
        store.create(STUDY, np.zeros((2, 3), np.int32))
        store.merge(STUDY, 0, b"one", 0, model(0x51A90001), 1.0)
        hold(store, 0.05)
        assert store.scrub() == "begun"
        # It began before these merges, so the present call needs another one.
        store.merge(STUDY, 0, b"two", 0, model(0x51A90002), 1.0)
        store.merge(STUDY, 0, b"three", 0, model(0x51A90003), 1.0)
        assert (another.scrub(), store.scrub()) == ("blocked", "blocked")
        assert model(0x51A90002) in on_disk(process.url)
        hold(store, 0.0)
        assert another.scrub(10.0) == "done"
        left = on_disk(process.url)
        assert [model(0x51A90000 + i) in left for i in (1, 2, 3)] == [False, False, True]
        assert store.draw(STUDY, 0) == (3, model(0x51A90003))


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="only Linux tells a process's children"
)
def test_scrub_reports_failed_rewrite(process: RedisProcess) -> None:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def kill_the_rewrite() -> None:
        while not (found := children.read_text().split()):
            pass
        os.kill(int(found[0]), signal.SIGKILL)

    with RedisInstanceStore(process.url) as store:
        store.create(STUDY, np.zeros((2, 3), np.int32))
        hold(store, 10.0)
        thread = Thread(target=kill_the_rewrite)
        thread.start()
        assert store.scrub(30.0) == "blocked"
        thread.join()
        hold(store, 0.0)
        assert store.scrub(30.0) == "done"


def test_scrub_is_done_without_append_only_file() -> None:
    with redis_process() as process, RedisInstanceStore(process.url) as store:
        assert store.scrub() == "done"


def test_scrub_reports_missing_permission(process: RedisProcess) -> None:
    with RedisInstanceStore(process.url) as store:
        store._redis.acl_setuser(
            "default", enabled=True, nopass=True, commands=["+@all", "-bgrewriteaof"], keys=["*"]
        )
        with pytest.raises(StoreError, match="STORE-001"):
            store.scrub(10.0)


@pytest.fixture
def server() -> Iterator[Redis]:
    with redis() as running:
        yield running


def said(url: str) -> str:
    with pytest.raises(StoreError, match="STORE-001") as refused:
        RedisInstanceStore(url)
    assert "hidden" not in str(refused.value)
    return refused.value.what.removeprefix("Redis cannot be used: ")


def test_store_reports_errors_of_server(server: Redis) -> None:
    host = server.url.rpartition("/")[0]
    assert said(f"{host}/16") == said(f"{host}?db=16") == "it has no database of this number."
    assert said(f"redis://hidden:hidden@{host.partition('//')[2]}/0").startswith(
        "user or password is wrong"
    )
    assert said(f"{host}/0?hidden=1") == "its address has an option that does not exist."
    assert (
        said(f"{host}/?db=hidden") == said("redis://hidden:port/0") == "its address cannot be read."
    )
    assert (
        said(f"redis://127.0.0.1:{free_port()}/0")
        == said("unix:///hidden")
        == "no server answers at this address."
    )


@pytest.mark.parametrize("database", ["hidden", "1/2", "-1", "0x1", "²", "1 "])
def test_open_rejects_database_that_is_not_a_number(database: str) -> None:
    """The library would take the first for number 0, and the second for number 12."""
    with pytest.raises(UsageError, match="USAGE-001") as refused:
        RedisInstanceStore(f"redis://127.0.0.1:1/{database}")
    assert "hidden" not in str(refused.value)


def test_databases_are_separate(server: Redis) -> None:
    host = server.url.rpartition("/")[0]
    with (
        RedisInstanceStore(f"{host}/3") as third,
        RedisInstanceStore(host) as first,
        RedisInstanceStore(f"{host}/") as also_first,
    ):
        third.create(STUDY, np.zeros((2, 3), np.int32))
        assert (third.find_shape(STUDY), first.find_shape(STUDY), also_first.find_shape(STUDY)) == (
            (2, 3),
            None,
            None,
        )
