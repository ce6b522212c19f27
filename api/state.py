"""What every route may ask of the running application, as typed FastAPI dependencies."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request
from redis.asyncio import Redis

from api.admission import Admission
from api.problems import job_not_found
from api.waiting import JobWaiter
from worker import tenants
from worker.settings import Settings


async def _settings(request: Request) -> Settings:
    return cast(Settings, request.app.state.settings)


async def _redis(request: Request) -> Redis:
    return cast(Redis, request.app.state.redis)


async def _waiter(request: Request) -> JobWaiter:
    return cast(JobWaiter, request.app.state.waiter)


async def _admission(request: Request) -> Admission:
    return cast(Admission, request.app.state.admission)


async def _tenant(request: Request) -> str:
    return cast(str, request.state.tenant)


TenantState = Annotated[str, Depends(_tenant)]


async def _own_job(job_id: str, tenant: TenantState) -> str:
    """The path's job id. To anyone but its tenant, a job is not there."""
    if not tenants.owns(tenant, job_id):
        raise job_not_found()
    return job_id


AdmissionState = Annotated[Admission, Depends(_admission)]
SettingsState = Annotated[Settings, Depends(_settings)]
OwnJobId = Annotated[str, Depends(_own_job)]
RedisState = Annotated[Redis, Depends(_redis)]
WaiterState = Annotated[JobWaiter, Depends(_waiter)]
