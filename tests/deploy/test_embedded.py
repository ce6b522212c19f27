"""The embedded server's life: start, stop, kill -9, leftovers, two starts."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from processes import eventually, is_alive
from redis import Redis

from deploy.embedded import EmbeddedServerError, EmbeddedValkey

OWNER_THAT_DIES = """
import os, sys
from pathlib import Path
from deploy.embedded import EmbeddedValkey
server = EmbeddedValkey(Path(sys.argv[1]), Path(sys.argv[2]))
server.start()
print(server.pid, flush=True)
os._exit(0)
"""


def client(server: EmbeddedValkey) -> Redis:
    return Redis.from_url(server.url, decode_responses=True)


def config(redis: Redis, name: str) -> str:
    values = redis.config_get(name)
    assert isinstance(values, dict)
    return str(values[name])


def test_it_answers_keeps_what_it_is_told_and_opens_no_port(valkey: EmbeddedValkey) -> None:
    with client(valkey) as redis:
        assert redis.ping()
        assert config(redis, "port") == "0"
        assert config(redis, "appendonly") == "yes"
        assert config(redis, "appendfsync") == "everysec"
        assert config(redis, "maxmemory-policy") == "noeviction"
    assert stat.S_IMODE(valkey.socket_path.stat().st_mode) == 0o700
    assert stat.S_IMODE(valkey.data_dir.stat().st_mode) == 0o700


def test_it_has_a_session_of_its_own(valkey: EmbeddedValkey) -> None:
    assert valkey.pid is not None
    assert os.getsid(valkey.pid) == valkey.pid != os.getsid(0)


def test_stopping_leaves_no_process_and_no_socket(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "data", tmp_path / "s.sock")
    server.start()
    pid = server.pid
    assert pid is not None
    server.stop()
    server.stop()
    assert not is_alive(pid)
    assert not server.socket_path.exists()
    assert not (tmp_path / "data" / "valkey.pid").exists()


def test_data_survives_a_clean_stop(tmp_path: Path) -> None:
    for expected in (None, "kept"):
        with EmbeddedValkey(tmp_path / "data", tmp_path / "s.sock") as server, client(server) as redis:
            assert redis.get("key") == expected
            redis.set("key", "kept")


def test_data_survives_kill_9_and_the_leftovers_are_cleaned(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "data", tmp_path / "s.sock")
    server.start()
    with client(server) as redis:
        redis.set("key", "kept")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert eventually(lambda: not server.is_running())
    assert server.socket_path.exists()  # stale
    server.stop()
    with EmbeddedValkey(tmp_path / "data", tmp_path / "s.sock") as again, client(again) as redis:
        assert redis.get("key") == "kept"


def test_a_stale_socket_and_pid_of_an_unrelated_process_are_cleaned(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "valkey.pid").write_text(str(os.getpid()))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s.sock"))
    with EmbeddedValkey(tmp_path / "data", tmp_path / "s.sock") as server:
        assert server.pid != os.getpid()


def test_a_second_start_on_the_same_data_is_refused(valkey: EmbeddedValkey) -> None:
    with pytest.raises(EmbeddedServerError, match="FIELDCAST_DATA_DIR"):
        EmbeddedValkey(valkey.data_dir, valkey.socket_path).start()
    with client(valkey) as redis:
        assert redis.ping()


def test_a_second_server_on_the_same_socket_is_refused(valkey: EmbeddedValkey, tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="already answers"):
        EmbeddedValkey(tmp_path / "other", valkey.socket_path).start()
    with client(valkey) as redis:
        assert redis.ping()


def test_a_server_whose_owner_died_is_taken_over(tmp_path: Path) -> None:
    data, path = tmp_path / "data", tmp_path / "s.sock"
    owner = subprocess.run(
        [sys.executable, "-c", OWNER_THAT_DIES, str(data), str(path)], capture_output=True, text=True, check=True
    )
    orphan = int(owner.stdout)
    with EmbeddedValkey(data, path) as server:
        assert server.pid == orphan
        assert server.is_running()
    assert eventually(lambda: not is_alive(orphan))
    assert not path.exists()


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="103 bytes"):
        EmbeddedValkey(tmp_path / "data", tmp_path / ("s" * 100)).start()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "appendonlydir").write_text("not a folder")
    with pytest.raises(EmbeddedServerError, match="ended at once"):
        EmbeddedValkey(tmp_path / "data", tmp_path / "s.sock").start()
    (tmp_path / "data" / "appendonlydir").unlink()
    with EmbeddedValkey(tmp_path / "data", tmp_path / "s.sock") as server:
        assert server.is_running()
