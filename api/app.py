"""The ASGI application. Imports the API's parts; neither mlx nor numpy comes in by any of them (a test looks)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI

from api import metrics, openapi, problems
from api.admission import Admission
from api.authentication import Authentication
from api.connection import connect
from api.guard import Guard, is_local
from api.keys import ApiKey, ApiKeys
from api.routes import health, jobs, models, presets
from api.waiting import JobWaiter
from engine.version import __version__
from worker.settings import Settings

DESCRIPTION = (
    "Answers typed questions about documents: every field at once, with a probability for every allowed value."
)

CANCEL_AGAIN_S = 0.2


def create_app(settings: Settings, own_key: ApiKey | None = None) -> FastAPI:
    """The service for `settings`. Needs its lifespan to run; Redis may come up later than it. `own_key`: one more than
    those in the file."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        redis = connect(settings)
        app.state.redis = redis
        app.state.waiter = JobWaiter(redis)
        listener = asyncio.create_task(app.state.waiter.listen())
        try:
            yield
        finally:
            await _stop(listener)
            await redis.aclose()

    app = FastAPI(
        title="Fieldcast",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load their scripts from another site
        redoc_url=None,
        redirect_slashes=False,  # one path per resource; a redirect would also lose the problem of an unknown one
    )
    app.state.settings = settings
    app.state.admission = Admission(settings)
    problems.install(app)
    for routes in (jobs, models, presets, health):
        app.include_router(routes.router)
    openapi.install(app)
    # The middleware added last is the outermost: metrics count what the guard and the authentication refuse, too.
    keys = ApiKeys(settings.keys_path, own_key, required=settings.api_keys_file is not None)
    app.add_middleware(Authentication, keys=keys)
    app.add_middleware(Guard, loopback_only=is_local(settings.host))
    metrics.install(app, settings)
    return app


async def _stop(task: asyncio.Task[None]) -> None:
    # Cancelling once may not do: redis-py sends under asyncio.wait_for, which on Python 3.11 swallows a cancellation
    # that comes just as what it waits for is done.
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_AGAIN_S)
    with suppress(asyncio.CancelledError):
        await task


def create_app_from_env() -> FastAPI:
    """For `uvicorn --factory api.app:create_app_from_env`."""
    return create_app(Settings())
