"""`/v1/models`: what the running workers have loaded."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from api.problems import openapi_responses
from api.state import RedisState
from worker import status

router = APIRouter(prefix="/v1/models", tags=["models"])

# The compatible clients want a date for every model. These are the public release dates of the two defaults; of any
# other model we know none, and say so with the earliest date there is.
RELEASE_DATES = {"smollm2-135m": "2024-11-01", "mlx-community/Qwen2.5-1.5B-Instruct-4bit": "2024-09-19"}
UNKNOWN_DATE = "1970-01-01"


@router.get("", summary="The models that answer now", responses=openapi_responses(503))
async def list_models(redis: RedisState) -> dict[str, Any]:
    """One entry per model, however many workers serve it; empty while no worker is alive."""
    infos = {worker.info["model"]: worker.info for worker in await status.workers(redis)}
    return {"models": [_shape(info) for _, info in sorted(infos.items())]}


def _shape(info: dict[str, Any]) -> dict[str, Any]:
    name = info["model"]
    extra = {f"x_{key}": value for key, value in info.items() if key != "model"}
    return {
        "name": name,
        "description": f"{name}, answering on {info.get('device', 'an unknown device')}",
        "release_date": RELEASE_DATES.get(name, UNKNOWN_DATE),
        **extra,
    }
