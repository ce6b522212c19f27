"""What a soak runs against: an embedded server, the API and two workers, each a process of its own; and its faults.

The workers are scripted.py's, so no model is loaded. One of them gets killed. The other is stopped and cut off, but
lives to the end, so that its memory says something.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from queue_client import Part, run_worker, until
from redis import Redis

from deploy.embedded import EmbeddedValkey
from deploy.listening import listen, url
from deploy.part import child_environment, fieldcast_command
from worker import keys

LEASE_S = 2.0
WORKER = {"lease_s": LEASE_S, "heartbeat_s": 0.5, "batch_rows": 16}
KILLED, KEPT = "killed", "kept"  # the workers' slots
GAP_S = (0.2, 6.0)  # between two faults of the same process
STOPPED_S = (LEASE_S, 8.0)
AWAY_S = (0.0, 1.5)
EXIT_S = 60.0
POLL_S = 0.1

Fault = Callable[[random.Random], Awaitable[None]]


class Stack:
    """`with` starts and ends it. While `calm` is held, Redis stays up."""

    def __init__(self, folder: Path, result_ttl_s: int) -> None:
        self.valkey = EmbeddedValkey(folder / "valkey", folder / "v.sock")
        self.calm = asyncio.Lock()
        self.workers: dict[str, Part] = {}
        self.died: list[str] = []  # workers that nobody had ended
        self._folder, self._result_ttl_s = folder, result_ttl_s

    def __enter__(self) -> Stack:
        self.valkey.start()
        listening = listen("127.0.0.1", 0, "")
        self.url = url(*listening.getsockname())
        with listening, (self._folder / "api.log").open("wb") as log:
            settings = {**self._settings(), "FIELDCAST_RESULT_TTL_S": str(self._result_ttl_s)}
            self.api = subprocess.Popen(
                fieldcast_command("api", "--listen-fd", str(listening.fileno())),
                env=child_environment(settings),
                stdout=log,
                stderr=log,
                pass_fds=[listening.fileno()],
            )
        for slot in (KILLED, KEPT):
            self.start_worker(slot)
        with Redis.from_url(self.valkey.url) as redis:
            until(lambda: redis.exists(*(keys.worker(slot) for slot in self.workers)) == len(self.workers))
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.api, *(part.process for part in self.workers.values())):
            process.kill()
            process.wait()
        self.valkey.stop()

    def start_worker(self, slot: str) -> None:
        settings = {"redis_url": self.valkey.url, "data_dir": self._folder, "worker_slot": slot, **WORKER}
        self.workers[slot] = run_worker(self._folder, slot, **settings)

    def restart_if_dead(self, slot: str) -> None:
        """Starts a worker again that ended by itself, and notes it."""
        part = self.workers[slot]
        if part.process.poll() is not None:
            self.died.append(f"worker {slot} ended by itself, exit code {part.process.returncode}: {part.log[-2000:]}")
            self.start_worker(slot)

    def resident_mb(self) -> tuple[float, float]:
        """Of the API and of the worker that is never killed."""
        pids = [self.api.pid, self.workers[KEPT].process.pid]
        command = ["ps", "-o", "pid=,rss=", "-p", ",".join(map(str, pids))]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        kib = {int(pid): int(rss) for pid, rss in map(str.split, printed.splitlines())}
        return kib[pids[0]] / 1024, kib[pids[1]] / 1024

    def _settings(self) -> dict[str, str]:
        return {"FIELDCAST_REDIS_URL": self.valkey.url, "FIELDCAST_DATA_DIR": str(self._folder)}


class Faults:
    """What goes wrong, at random times until `end`. `seed` decides what and when; which jobs it hits, nobody knows."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.redis_kills: list[float] = []  # monotonic
        self._stack, self._seed = stack, seed
        self._ended = asyncio.Event()

    async def run(self) -> None:
        killed: dict[str, Fault] = {
            "worker killed": self._kill,
            "worker terminated": self._terminate,
            "worker stopped": self._stop(KILLED),
        }
        kept: dict[str, Fault] = {"worker stopped": self._stop(KEPT)}
        server: dict[str, Fault] = {
            "connections cut": self._cut,
            "Redis killed": self._kill_redis,
            "Redis restarted": self._restart_redis,
        }
        async with asyncio.TaskGroup() as loops:
            for slot, kinds in ((KILLED, killed), (KEPT, kept), (None, server)):
                loops.create_task(self._again_and_again(slot, kinds, random.Random(f"{self._seed} {slot}")))

    def end(self) -> None:
        self._ended.set()

    async def _again_and_again(self, slot: str | None, kinds: dict[str, Fault], chance: random.Random) -> None:
        while not await self._is_ended_within(chance.uniform(*GAP_S)):
            if slot is not None:
                self._stack.restart_if_dead(slot)
            name = chance.choice(list(kinds))
            self.counts[name] += 1
            await kinds[name](chance)

    async def _is_ended_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        return self._ended.is_set()

    async def _kill(self, _: random.Random) -> None:
        await self._end_worker(signal.SIGKILL)

    async def _terminate(self, _: random.Random) -> None:
        await self._end_worker(signal.SIGTERM)

    async def _end_worker(self, number: int) -> None:
        process = self._stack.workers[KILLED].process
        process.send_signal(number)
        while process.poll() is None:
            await asyncio.sleep(POLL_S)
        self._stack.start_worker(KILLED)

    def _stop(self, slot: str) -> Fault:
        async def stop(chance: random.Random) -> None:
            process = self._stack.workers[slot].process
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(chance.uniform(*STOPPED_S))
            process.send_signal(signal.SIGCONT)

        return stop

    async def _cut(self, _: random.Random) -> None:
        async with self._stack.calm:
            with Redis.from_url(self._stack.valkey.url) as redis:
                for kind in ("normal", "pubsub"):
                    redis.client_kill_filter(_type=kind, skipme=True)

    async def _kill_redis(self, chance: random.Random) -> None:
        async with self._stack.calm:
            pid: Any = self._stack.valkey.pid
            self.redis_kills.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)
            await self._bring_redis_back(chance)

    async def _restart_redis(self, chance: random.Random) -> None:
        async with self._stack.calm:
            await self._bring_redis_back(chance)

    async def _bring_redis_back(self, chance: random.Random) -> None:
        await asyncio.to_thread(self._stack.valkey.stop)
        await asyncio.sleep(chance.uniform(*AWAY_S))
        await asyncio.to_thread(self._stack.valkey.start)
