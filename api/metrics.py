"""The API's Prometheus series, their middleware and `/metrics`. From worker: names, queue depth and registry only.

HTTP series are counted here; the queue's gauges are read from Redis at each scrape, so that they are true whichever
process wrote the queue and whether or not a worker lives.
"""

from __future__ import annotations

import time

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from redis.asyncio import Redis
from redis.exceptions import RedisError
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog import get_logger

from worker.deliveries import pending
from worker.metrics import PREFIX, SECONDS, new_registry, preset_label, preset_labels
from worker.settings import Settings
from worker.status import queue_depth

log = get_logger(__name__)

PATH = "/metrics"
UNMATCHED = "unmatched"  # the route label of every path that no route serves
METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
UNANSWERED = 499  # nginx's number for a request whose client left before the answer

REGISTRY = new_registry()

_submitted = Counter("jobs_submitted", "Jobs queued.", ["preset"], namespace=PREFIX, registry=REGISTRY)
_finished = Counter("jobs_finished", "Jobs that ended.", ["preset", "status"], namespace=PREFIX, registry=REGISTRY)
_rejected = Counter("jobs_rejected", "Jobs refused at submission.", ["reason"], namespace=PREFIX, registry=REGISTRY)
_requests = Counter(
    "http_requests", "HTTP requests answered.", ["route", "method", "status"], namespace=PREFIX, registry=REGISTRY
)
_request_seconds = Histogram(
    "http_request_duration_seconds",
    "Time to the end of the answer. Held requests (Prefer: wait) count with the time they were held.",
    ["route"],
    namespace=PREFIX,
    registry=REGISTRY,
    buckets=SECONDS,
)

for _label in preset_labels():
    # A series that first appears at 1 hides that increase from rate().
    _submitted.labels(_label)
    _finished.labels(_label, "cancelled")


def submitted(preset: str | None) -> None:
    """A job was accepted."""
    _submitted.labels(preset_label(preset)).inc()


def cancelled(preset: str | None) -> None:
    """A job was ended by its client. The worker counts every other end."""
    _finished.labels(preset_label(preset), "cancelled").inc()


def rejected(reason: str) -> None:
    """A job was refused; `reason` is the problem's `type`, never text of the request."""
    _rejected.labels(reason).inc()


def install(app: FastAPI, settings: Settings) -> None:
    """Counts every request of `app` and serves `/metrics`, which needs `app.state.redis`.

    Call it after all other middleware was added: what those refuse is counted, too.
    """
    app.add_middleware(_CountRequests)

    @app.get(PATH, include_in_schema=False)
    async def metrics(request: Request) -> Response:
        body = generate_latest(REGISTRY) + generate_latest(await _read_redis(request.app.state.redis))
        return Response(body, media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def _read_redis(redis: Redis) -> CollectorRegistry:
    """The gauges of this moment; none while Redis cannot be reached, which `absent()` tells from an empty queue."""
    registry = CollectorRegistry()
    try:
        depth, webhooks = await queue_depth(redis), await pending(redis)
    except RedisError as error:
        log.warning("queue gauges left out", action="scrape_incomplete", error=type(error).__name__)
        return registry
    jobs = Gauge("queue_jobs", "Jobs not yet ended.", ["state"], namespace=PREFIX, registry=registry)
    jobs.labels("queued").set(depth.queued)
    jobs.labels("in_progress").set(depth.in_progress)
    age = "How long the oldest queued job has waited; 0 when none waits."
    oldest = Gauge("queue_oldest_job_age_seconds", age, namespace=PREFIX, registry=registry)
    oldest.set(depth.oldest_age_s or 0)
    waiting = Gauge("webhook_pending", "Webhooks not yet delivered.", namespace=PREFIX, registry=registry)
    waiting.set(webhooks)
    return registry


class _CountRequests:
    """ASGI middleware. The route label is the route's template, so that no client can add series."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = UNANSWERED

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        started_at = time.perf_counter()
        try:
            await self._app(scope, receive, watched_send)
        except Exception:
            status = 500
            raise
        finally:
            route = getattr(scope.get("route"), "path", UNMATCHED)
            method = scope["method"] if scope["method"] in METHODS else "other"
            _requests.labels(route, method, status).inc()
            _request_seconds.labels(route).observe(time.perf_counter() - started_at)
