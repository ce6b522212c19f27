"""`/v1/jobs`: submit, look, wait, follow, cancel, queue again, delete."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from structlog import get_logger

from api import job_events, metrics
from api.body import read_model
from api.job_body import JobBody
from api.job_request import JobRequest
from api.openapi import body_of
from api.prefer import wait_seconds
from api.problems import ProblemError, job_not_found, openapi_responses
from api.state import AdmissionState, OwnJobId, RedisState, SettingsState, TenantState, WaiterState
from api.waiting import has_ended
from worker import jobs
from worker.job_record import Job

log = get_logger(__name__)
router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

RETRY_AFTER_S = 1  # told to clients that poll
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@router.post(
    "",
    status_code=202,
    response_model=JobBody,
    summary="Ask about a document",
    responses=openapi_responses(400, 403, 413, 415, 422, 429, 503),
    openapi_extra=body_of("JobRequest"),
)
async def submit(
    request: Request, tenant: TenantState, redis: RedisState, settings: SettingsState, admission: AdmissionState
) -> Response:
    """Takes the job and answers at once. Follow `Location`, or ask for a webhook."""
    try:
        body = await read_model(request, JobRequest, settings.max_body_bytes)
        spec = body.spec(settings, tenant)
        await admission.admit(redis)
    except ProblemError as problem:
        metrics.rejected(problem.type)
        raise
    job = await jobs.submit(redis, spec)
    metrics.submitted(spec.preset)
    log.info("job submitted", action="submit_job", job_id=job.id, tenant=tenant, preset=spec.preset, lane=spec.lane)
    return _answer(request, job, status=202)


@router.get(
    "/{job_id}",
    summary="A job and, once it has ended, its result",
    response_model=JobBody,
    responses=openapi_responses(404, 503),
)
async def fetch(
    job_id: OwnJobId, request: Request, redis: RedisState, waiter: WaiterState, settings: SettingsState
) -> Response:
    """With `Prefer: wait=N` the answer is held until the job has ended, at most N seconds; then 202 if it has not."""
    wait_s = wait_seconds(request.headers.getlist("prefer"), settings.max_wait_s)
    if wait_s is None:
        job = await jobs.fetch(redis, job_id)
        return _answer(request, _found(job))
    job = _found(await waiter.wait(job_id, wait_s, request.is_disconnected))
    answer = _answer(request, job, status=200 if has_ended(job) else 202)
    answer.headers["Preference-Applied"] = f"wait={wait_s}"
    return answer


@router.get(
    "/{job_id}/events",
    summary="A job's life as server-sent events",
    response_class=StreamingResponse,  # not EventSourceResponse: FastAPI takes a route of that class for a generator
    responses=openapi_responses(404, 503)
    | {
        200: {"description": "The events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
        204: {"description": "Nothing is left to tell after `Last-Event-ID`."},
    },
)
async def events(job_id: OwnJobId, request: Request, redis: RedisState, waiter: WaiterState) -> Response:
    """`queued`, `started` and, with the whole job, `completed`, `failed`, `cancelled` or `expired`; then it ends.

    What has already happened is told first, after `Last-Event-ID` if that is given. A job that is run again after a
    crash has more than one `started`.
    """
    job = _found(await jobs.fetch(redis, job_id))
    last_id = request.headers.get("last-event-id")
    if has_ended(job) and not job_events.after(job_events.happened(job), last_id):
        return Response(status_code=204)  # by which a browser's EventSource knows that it need not come back
    stream = job_events.follow(waiter, job_id, last_id, request.is_disconnected)
    return StreamingResponse(stream, headers=STREAM_HEADERS, media_type="text/event-stream")


@router.post(
    "/{job_id}/cancel", summary="Cancel a job", response_model=JobBody, responses=openapi_responses(403, 404, 503)
)
async def cancel(job_id: OwnJobId, request: Request, redis: RedisState) -> Response:
    """Takes effect before the job's next pass. A job that has ended stays as it is, so this may be repeated."""
    job, ended_now = await jobs.cancel(redis, job_id) or (None, False)
    job = _found(job)
    if ended_now:
        metrics.cancelled(job.preset)
        log.info("job cancelled", action="cancel_job", job_id=job.id)
    return _answer(request, job)


@router.post(
    "/{job_id}/requeue",
    status_code=202,
    summary="Queue a failed or cancelled job again",
    response_model=JobBody,
    responses=openapi_responses(403, 404, 409, 429, 503),
)
async def requeue(job_id: OwnJobId, request: Request, redis: RedisState, admission: AdmissionState) -> Response:
    """It goes behind the waiting jobs of its priority, as if it had never crashed a worker. Its old outcome is gone."""
    try:
        await admission.admit(redis)
    except ProblemError as problem:
        metrics.rejected(problem.type)
        raise
    try:
        job = _found(await jobs.requeue(redis, job_id))
    except jobs.RequeueRefused as refusal:
        raise ProblemError(409, refusal.type, str(refusal)) from None
    metrics.submitted(job.preset)
    log.info("job queued again", action="requeue_job", job_id=job.id)
    return _answer(request, job, status=202)


@router.delete(
    "/{job_id}", status_code=204, summary="Remove a job and what it said", responses=openapi_responses(403, 404, 503)
)
async def delete(job_id: OwnJobId, redis: RedisState) -> None:
    """Its result goes at once, and its document unless another job still needs it. An unfinished job never ends."""
    job = _found(await jobs.delete(redis, job_id))
    if not has_ended(job):
        metrics.cancelled(job.preset)
    log.info("job deleted", action="delete_job", job_id=job.id, status=job.status)


def _found(job: Job | None) -> Job:
    if job is None:
        raise job_not_found()
    return job


def _answer(request: Request, job: Job, status: int = 200) -> Response:
    body = _encode(job.to_dict())
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    if not has_ended(job):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if request.method == "POST" and status == 202:
        headers["Location"] = f"/v1/jobs/{job.id}"
    if request.method == "GET" and _matches(request.headers.getlist("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    return Response(body, status, headers=headers, media_type="application/json")


def _encode(shape: dict[str, Any]) -> bytes:
    return json.dumps(shape, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _matches(headers: list[str], etag: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for header in headers for tag in header.split(",")]
    return etag in tags or "*" in tags
