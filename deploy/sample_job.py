"""One real job through the HTTP API, to show that the service works."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

import presets
from engine.errors import FieldcastError

SAMPLE_PRESET = "support_triage"
READY_TIMEOUT_S = 600.0  # a large model loads slowly
READY_POLL_S = 0.1
WAIT_S = 20
JOB_TIMEOUT_S = 600.0
ENDED = ("completed", "failed", "cancelled", "expired")


class NotReady(FieldcastError):
    """The service did not become ready in time."""

    type = "not_ready"


class JobNotAnswered(FieldcastError):
    """The API refused the sample job, or did not answer it in time."""

    type = "job_not_answered"


def client(base_url: str, key: str) -> httpx.AsyncClient:
    """For this machine's own API: never through a proxy."""
    authorization = {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=base_url, headers=authorization, timeout=WAIT_S + 10, trust_env=False)


async def wait_until_ready(http: httpx.AsyncClient) -> None:
    """Returns when /readyz says so. Raises NotReady, with what was missing last."""
    missing = "the API does not answer"
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                try:
                    answer = await http.get("/readyz")
                    if answer.status_code == httpx.codes.OK:
                        return
                    missing = str(answer.json().get("detail"))
                except (httpx.TransportError, ValueError):
                    pass  # the port is taken before the API is there to answer
                await asyncio.sleep(READY_POLL_S)
    except TimeoutError:
        raise NotReady(f"the service was not ready in {READY_TIMEOUT_S:.0f} s: {missing}") from None


async def answer_sample(http: httpx.AsyncClient) -> dict[str, Any]:
    """Posts the sample and returns the job once it has ended. Raises JobNotAnswered."""
    body = {"preset": SAMPLE_PRESET, "context": presets.load(SAMPLE_PRESET).samples[0], "priority": "interactive"}
    try:
        async with asyncio.timeout(JOB_TIMEOUT_S):
            job = _checked(await http.post("/v1/jobs", json=body))
            while job["status"] not in ENDED:
                job = _checked(await http.get(f"/v1/jobs/{job['id']}", headers={"Prefer": f"wait={WAIT_S}"}))
            return job
    except TimeoutError:
        raise JobNotAnswered(f"the sample job was not answered in {JOB_TIMEOUT_S:.0f} s") from None
    except httpx.TransportError as error:
        raise JobNotAnswered(f"the API broke off: {type(error).__name__}") from error


def _checked(answer: httpx.Response) -> dict[str, Any]:
    if answer.is_error:
        raise JobNotAnswered(f"the API answered {answer.status_code}: {answer.text[:500]}")
    job: dict[str, Any] = answer.json()
    return job
