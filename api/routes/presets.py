"""`/v1/presets`: the ready-made schemas."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

import presets
from api.problems import ProblemError, openapi_responses
from presets import Preset

router = APIRouter(prefix="/v1/presets", tags=["presets"])


@router.get("", summary="All presets, without their schemas")
async def list_presets() -> dict[str, Any]:
    return {"presets": [_summary(presets.load(name)) for name in presets.names()]}


@router.get("/{name}", summary="One preset with its schema and sample contexts", responses=openapi_responses(404))
async def get_preset(name: str) -> dict[str, Any]:
    try:
        preset = presets.load(name)
    except presets.UnknownPreset as error:
        raise ProblemError(404, error.type, str(error)) from None
    return {**_summary(preset), "schema": preset.schema.to_dict(), "samples": list(preset.samples)}


def _summary(preset: Preset) -> dict[str, Any]:
    return {
        "name": preset.name,
        "title": preset.title,
        "description": preset.description,
        "version": preset.version,
        "schema_id": preset.schema.schema_id,
        "fields": len(preset.schema),
        "links": {"self": f"/v1/presets/{preset.name}"},
    }
