"""The webhook sender, a process of its own: `fieldcast webhooks`. Imports no mlx.

Claim what is due, post it, end it or put it back. Any number of senders may run; a delivery is sent at least once.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime

from redis.asyncio import Redis
from redis.exceptions import RedisError
from structlog import get_logger

from worker import webhook_metrics
from worker.connection import connect_async
from worker.deliveries import secret_problem
from worker.delivery_queue import Claimed, Delivery, claim, disable, end, is_disabled, put_back, read, wait_for_due
from worker.jobs import fetch
from worker.metrics import serve
from worker.settings import Settings
from worker.webhook_post import Outcome, Poster

log = get_logger(__name__)

PER_ENDPOINT = 8  # attempts at one time to one host and port; 1 from its first failure to its next success
MAX_ATTEMPTS_AT_ONCE = 256  # so it takes that many dead endpoints, all due at once, to make another one wait
MAX_FAILING = 1000  # endpoints remembered as failing
LOOKUP_THREADS = 2 * MAX_ATTEMPTS_AT_ONCE  # a look-up outlives its attempt when a name server is dead
POLL_S = 0.5  # how soon SIGTERM is seen
RECONNECT_S = 1.0
LEASE_MARGIN_S = 30.0  # beyond the longest attempt, for Redis to be slow in
MAX_JITTER = 0.1  # of the delay, on top: spreads what failed together, and is never earlier than Retry-After
SETTLE_TIMEOUT_S = 5.0
REDIS_CONNECTIONS = 16


class Sender:
    """Delivers until told to stop."""

    def __init__(self, redis: Redis, settings: Settings, poster: Poster) -> None:
        self._redis, self._settings, self._poster = redis, settings, poster
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: Counter[str] = Counter()  # attempts now running, by endpoint
        self._failing: set[str] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Claims and sends until `stop` is set, then lets the attempts that are under way end."""
        while not stop.is_set():
            try:
                if not await self.step():
                    await wait_for_due(self._redis, POLL_S)
            except RedisError as error:
                log.warning("redis unavailable", action="redis_unavailable", error=type(error).__name__)
                await asyncio.sleep(RECONNECT_S)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.webhook_timeout_s + SETTLE_TIMEOUT_S)

    async def step(self) -> int:
        """Starts an attempt at everything that is due and has room; returns how many."""
        claimed = await claim(
            self._redis,
            lease_s=self._settings.webhook_timeout_s + LEASE_MARGIN_S,
            per_endpoint=PER_ENDPOINT,
            room=MAX_ATTEMPTS_AT_ONCE - len(self._tasks),
            busy=self._busy + Counter(dict.fromkeys(self._failing, PER_ENDPOINT - 1)),
        )
        for one in claimed:
            self._busy[one.endpoint] += 1
            task = asyncio.create_task(self._attempt(one))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return len(claimed)

    async def _attempt(self, claimed: Claimed) -> None:
        try:
            await self._deliver(claimed)
        except RedisError as error:
            # Not settled: it falls due again when its lease ends.
            log.warning("delivery not settled", action="delivery_unsettled", id=claimed.id, error=type(error).__name__)
        except Exception as error:
            # A bug of ours must not stop the others, nor make this one be tried without end.
            log.error("delivery broke", action="delivery_broke", id=claimed.id, error=type(error).__qualname__)
            webhook_metrics.attempted("error")
            with suppress(RedisError):
                await end(self._redis, claimed, state="failed", attempt=_record(Outcome("error")))
        finally:
            self._busy[claimed.endpoint] -= 1
            self._busy += Counter()  # forgets the endpoints at 0

    async def _deliver(self, claimed: Claimed) -> None:
        delivery = await read(self._redis, claimed)
        if delivery is None or delivery.state != "pending":
            await end(self._redis, claimed, state=delivery.state if delivery else "dropped")
            return
        body = delivery.body or await self._body(delivery)
        secret = delivery.secret or _service_secret(self._settings)
        if body is None or secret is None or await is_disabled(self._redis, delivery.url):
            why = "job_gone" if body is None else "no_secret" if secret is None else "endpoint_disabled"
            log.warning("delivery dropped", action="delivery_dropped", id=claimed.id, reason=why)
            await end(self._redis, claimed, state="dropped")
            return
        outcome = await self._poster.post(delivery.url, claimed.id, body, secret)
        self._remember(claimed.endpoint, failed=outcome.kind in ("timeout", "unreachable"))
        await self._settle(claimed, delivery, body, outcome)
        webhook_metrics.attempted(outcome.kind)

    def _remember(self, endpoint: str, *, failed: bool) -> None:
        if not failed:
            self._failing.discard(endpoint)
        elif len(self._failing) < MAX_FAILING:
            self._failing.add(endpoint)

    async def _settle(self, claimed: Claimed, delivery: Delivery, body: str, outcome: Outcome) -> None:
        attempt, delays_s = _record(outcome), self._settings.webhook_retry_delays_s
        event = {"id": claimed.id, "outcome": outcome.kind, "status": outcome.status, "attempt": delivery.attempts + 1}
        if outcome.kind == "succeeded":
            await end(self._redis, claimed, state="delivered", attempt=attempt)
            log.info("webhook delivered", action="webhook_delivered", **event)
            return
        if outcome.kind == "gone":
            await disable(self._redis, delivery.url)
        if outcome.kind in ("gone", "address_refused") or delivery.attempts >= len(delays_s):
            await end(self._redis, claimed, state="failed", attempt=attempt)
            log.warning("webhook given up", action="webhook_given_up", **event)
            return
        delay_s = max(delays_s[delivery.attempts], outcome.retry_after_s) * (1 + random.uniform(0, MAX_JITTER))
        await put_back(self._redis, claimed, due_at=time.time() + delay_s, body=body, attempt=attempt)
        log.info("webhook put back", action="webhook_put_back", delay_s=round(delay_s, 1), **event)

    async def _body(self, delivery: Delivery) -> str | None:
        job = await fetch(self._redis, delivery.job_id)
        if job is None:
            return None
        timestamp = datetime.fromtimestamp(delivery.created_at, UTC).isoformat().replace("+00:00", "Z")
        event = {"type": delivery.event, "timestamp": timestamp, "data": job.to_dict()}
        return json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def main(settings: Settings) -> int:
    """Sends webhooks until SIGTERM or SIGINT. Returns the process's exit code: 1 when it cannot start."""
    for secret in (_service_secret(settings) or "").split():
        why = secret_problem(secret)
        if why:
            log.error("FIELDCAST_WEBHOOK_SECRET is no key", action="start_failed", error=why)
            return 1
    try:
        server = serve(settings.webhooks_metrics_port, settings.metrics_host, webhook_metrics.REGISTRY)
    except OSError as error:
        log.error("metrics port taken", action="start_failed", port=settings.webhooks_metrics_port, error=str(error))
        return 1
    try:
        asyncio.run(_run(settings))
    finally:
        server.close()
    return 0


async def _run(settings: Settings) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.set_default_executor(ThreadPoolExecutor(LOOKUP_THREADS, "lookup"))
    redis = connect_async(
        settings.connection_url, max_connections=REDIS_CONNECTIONS, timeout=None, socket_timeout=SETTLE_TIMEOUT_S
    )
    poster = Poster(settings)
    log.info("webhook sender started", action="sender_started")
    try:
        await Sender(redis, settings, poster).run(stop)
    finally:
        await poster.close()
        await redis.aclose()
    log.info("webhook sender stopped", action="sender_stopped")


def _record(outcome: Outcome) -> dict[str, str]:
    status = "" if outcome.status is None else str(outcome.status)
    return {"last_attempt_at": str(time.time()), "last_outcome": outcome.kind, "last_status": status}


def _service_secret(settings: Settings) -> str | None:
    return None if settings.webhook_secret is None else settings.webhook_secret.get_secret_value()
