"""Webhook deliveries, as seen by who creates them: the check at submission and `enqueue`. Imports no mlx.

A delivery is a hash; its id is its `webhook-id` and is derived from job and event, so that an event that is enqueued
twice (a finish transaction that was repeated) is sent once. Pending ids are queued per endpoint (host and port), and
endpoints by the time of their first due delivery. worker/delivery_queue.py is the sender's side of the same keys.
"""

from __future__ import annotations

import base64
import binascii
import time
from typing import Protocol

import httpx
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline as AsyncPipeline
from redis.client import Pipeline

from engine.errors import FieldcastError, Problem
from worker.addresses import DEFAULT_PORTS, AddressRefused, check_url
from worker.settings import Settings

ENDPOINTS = "fieldcast:webhooks:endpoints"  # sorted set: endpoint by the time its first delivery is due
QUEUE = "fieldcast:webhooks:due:"  # + endpoint; sorted set: delivery id by due time
PENDING = "fieldcast:webhooks:pending"  # sorted set: every pending id by its creation time
WAKE = "fieldcast:webhooks:wake"  # list of at most one item; tells a waiting sender to look
DELIVERY = "fieldcast:delivery:"  # + delivery id; hash
KEEP_S = 4 * 86400  # from each attempt; longer than the longest wait for the next one (Retry-After: a day)
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64  # Standard Webhooks, "Signature scheme"
SECRET_PREFIX = "whsec_"


class WebhookInput(Protocol):
    """What a client asks for."""

    @property
    def url(self) -> str: ...
    @property
    def secret(self) -> str | None: ...


class WebhookInvalid(FieldcastError):
    """The webhook of a submission cannot be used; `problems` names each place."""

    type = "invalid_webhook"

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{'.'.join(map(str, p.loc))}: {p.msg}" for p in problems))


def check_webhook(webhook: WebhookInput, settings: Settings) -> None:
    """Checks a submission's webhook: its URL, and that deliveries can be signed. Raises `WebhookInvalid`."""
    problems = []
    try:
        check_url(webhook.url, settings)
    except AddressRefused as error:
        problems.append(Problem(("url",), str(error)))
    if webhook.secret is not None:
        why = secret_problem(webhook.secret)
        if why:
            problems.append(Problem(("secret",), why))
    elif settings.webhook_secret is None:
        problems.append(Problem(("secret",), "is missing, and this service has no secret of its own to sign with"))
    if problems:
        raise WebhookInvalid(problems)


def secret_problem(secret: str) -> str | None:
    """Why `secret` is not a Standard Webhooks key, or None when it is one. Never quotes it."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(SECRET_PREFIX) or not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        return f"must be {SECRET_PREFIX} and the base64 of {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} random bytes"
    return None


def delivery_id(job_id: str, event: str, requeues: int = 0) -> str:
    """The event's `webhook-id`, the same over all attempts. A job that was queued again by hand has another end."""
    again = f"_{requeues}" if requeues else ""
    return f"msg_{job_id}_{event.rpartition('.')[2]}{again}"


def enqueue(
    pipeline: Pipeline | AsyncPipeline, job_id: str, event: str, url: str, secret: str | None, requeues: int = 0
) -> None:
    """Buffers a new delivery's commands, so that it exists exactly when the job's end does.

    `event` is "job.completed" or "job.failed". `secret` None: the service's own signs. `requeues`: how often the job
    was queued again by hand. Does not change a delivery that exists.
    """
    now, found = time.time(), delivery_id(job_id, event, requeues)
    key, endpoint = DELIVERY + found, endpoint_of(url)
    pipeline.hset(key, mapping={"job_id": job_id, "event": event, "url": url, "secret": secret or ""})
    pipeline.hsetnx(key, "created_at", now)
    pipeline.hsetnx(key, "state", "pending")
    pipeline.expire(key, KEEP_S)
    pipeline.zadd(PENDING, {found: now}, nx=True)
    pipeline.zadd(QUEUE + endpoint, {found: now}, nx=True)
    pipeline.zadd(ENDPOINTS, {endpoint: now}, lt=True)
    pipeline.lpush(WAKE, 1)
    pipeline.ltrim(WAKE, 0, 0)


def endpoint_of(url: str) -> str:
    """`host:port`. Deliveries are queued by it, because everything behind it shares one server's fate."""
    parsed = httpx.URL(url)
    return f"{parsed.raw_host.decode('ascii')}:{parsed.port or DEFAULT_PORTS[parsed.scheme]}"


async def pending(redis: Redis) -> int:
    """Deliveries that have not ended."""
    return int(await redis.zcard(PENDING))
