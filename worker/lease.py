"""The thread that keeps a worker's claim on its slot and its jobs alive, and ends a process that hangs.

A slot has one owner at a time. Its key holds the owner's name and runs out with the lease, unless the owner renews it;
who starts on the same host and sees that the owner's process is gone takes over at once.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import RedisError
from rq.utils import as_text
from structlog import get_logger

from worker import buffered, keys
from worker.claim import TAKE_SLOT

log = get_logger(__name__)

HUNG_EXIT_CODE = 70  # EX_SOFTWARE
TAKE_EVERY_S = 0.5


class Lease:
    """Ownership of `slot` by a worker named `name`.

    `renewals` is called with a pipeline at each beat, to add renewals of its own; `hung` says that the main thread must
    have returned by now; `describe` gives the dict that is published about the worker.
    """

    def __init__(
        self,
        redis: Redis,
        slot: str,
        name: str,
        *,
        lease_s: float,
        heartbeat_s: float,
        describe: Callable[[], dict[str, Any]],
        renewals: Callable[[Pipeline], None],
        hung: Callable[[], bool],
        lost: Callable[[], None],
    ) -> None:
        self._redis, self._slot, self._lease_s, self._heartbeat_s = redis, slot, lease_s, heartbeat_s
        self.owner = f"{socket.gethostname()}|{os.getpid()}|{name}"  # what the slot's owner key holds while it is ours
        self._describe, self._renewals, self._hung, self._lost = describe, renewals, hung, lost
        self._take = redis.register_script(TAKE_SLOT)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    def take(self, give_up: Callable[[], bool]) -> bool:
        """Wait until Redis is there and the slot is ours. False: `give_up` said so first."""
        waited = False
        while not give_up():
            try:
                owner = self._owner_now(self._redis)
                if self._try(owner if owner and _is_dead(owner) else ""):
                    pipeline = self._redis.pipeline()
                    pipeline.sadd(keys.SLOTS, self._slot)
                    buffered.run(self._redis, pipeline)
                    return True
            except RedisError as error:
                owner = type(error).__name__
            if not waited:
                log.info("waiting for the slot", action="slot_wait", slot=self._slot, owner=owner)
                waited = True
            self._ending.wait(TAKE_EVERY_S)
        return False

    def start(self) -> None:
        """Publish what the worker is, and begin to renew."""
        self._publish()
        self._thread.start()

    def end(self) -> None:
        """Stop renewing and let the slot go, if it is still ours."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        with self._redis.pipeline() as pipeline:
            pipeline.watch(keys.owner(self._slot))  # type: ignore[no-untyped-call]
            ours = self._owner_now(pipeline) == self.owner
            pipeline.multi()
            if ours:
                pipeline.delete(keys.owner(self._slot), keys.worker(self._slot))
            pipeline.execute()

    def _owner_now(self, redis: Redis) -> str:
        """Who holds the slot; empty when nobody does."""
        return as_text(redis.get(keys.owner(self._slot)) or b"")

    def _try(self, dead_owner: str) -> bool:
        args: list[str | int] = [self.owner, int(self._lease_s * 1000), dead_owner]
        return bool(self._take(keys=[keys.owner(self._slot)], args=args) == 1)

    def _publish(self) -> None:
        pipeline = self._redis.pipeline()
        pipeline.set(keys.worker(self._slot), json.dumps(self._describe()), px=int(self._lease_s * 1000))
        self._renewals(pipeline)
        buffered.run(self._redis, pipeline)

    def _beat(self) -> None:
        while not self._ending.wait(self._heartbeat_s):
            if self._hung():
                log.error("a step does not return; ending the process", action="worker_hung", slot=self._slot)
                os._exit(HUNG_EXIT_CODE)  # the main thread is in native code: nothing gentler can reach it
            try:
                if not self._try(""):
                    log.error("another worker has taken the slot", action="slot_lost", slot=self._slot)
                    self._lost()
                    return
                self._publish()
            except RedisError as error:
                log.warning("the lease was not renewed", action="lease_error", error=type(error).__name__)


def _is_dead(owner: str) -> bool:
    """Is this the name of a process on this host that is gone?"""
    host, pid, _ = owner.split("|", 2)
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


class StepClock:
    """When the main thread last made a step, and until when the present one may take. Read by the lease's thread."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._hard_deadline: float | None = None  # monotonic
        self.last_step_at = time.time()

    def stepped(self) -> None:
        self.last_step_at = time.time()

    def begin(self, deadline: float) -> None:
        self._hard_deadline = deadline + self._grace_s

    def end(self) -> None:
        self._hard_deadline = None
        self.stepped()

    @property
    def in_step(self) -> bool:
        return self._hard_deadline is not None

    def is_hung(self) -> bool:
        return self._hard_deadline is not None and time.monotonic() > self._hard_deadline
