"""`/healthz`: this process answers. `/readyz`: jobs get answered, or what is missing for it."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from redis.exceptions import RedisError

from api.problems import RETRY_AFTER_S, FieldError, ProblemError, openapi_responses
from api.state import RedisState, SettingsState
from engine.version import __version__
from worker import status
from worker.connection import is_unavailable

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Is the process alive?")
async def healthz() -> dict[str, str]:
    return {"status": "ok", "version": __version__}


@router.get("/readyz", summary="Would a job be answered now?", responses=openapi_responses(503))
async def readyz(redis: RedisState, settings: SettingsState) -> dict[str, Any]:
    """503 names what is missing: `redis`, `worker` (none alive), `worker_step` (jobs wait and no worker moves)."""
    try:
        workers = await status.workers(redis)
        depth = await status.queue_depth(redis)
    except RedisError as error:
        if not is_unavailable(error):
            raise
        raise _missing("redis", "cannot be reached") from None
    if not workers:
        raise _missing("worker", "none is alive; start one with `fieldcast worker`")
    still_s = 0.0 if any(worker.in_step for worker in workers) else time.time() - max(w.last_step_at for w in workers)
    if depth.queued and still_s > settings.lease_s:
        why = f"{depth.queued} jobs wait, and no worker has made a step for {settings.lease_s:g} s"
        raise _missing("worker_step", why)
    return {"status": "ready", "workers": len(workers), "queued": depth.queued, "in_progress": depth.in_progress}


def _missing(part: str, why: str) -> ProblemError:
    return ProblemError(
        503,
        "not_ready",
        f"{part}: {why}",
        errors=[FieldError((part,), why)],
        headers={"Retry-After": str(RETRY_AFTER_S)},
        extra={"missing": [part]},
    )
