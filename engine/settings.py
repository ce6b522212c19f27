"""Settings of the model side, read from the environment (prefix FIELDCAST_). worker/settings.py adds the service's."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from engine.platform import default_data_dir, default_model


class ModelSettings(BaseSettings):
    """Where models live and which one answers."""

    model_config = SettingsConfigDict(env_prefix="FIELDCAST_", extra="ignore", frozen=True)

    model: str = Field(
        default_factory=default_model,
        description="Model that answers: a built-in name (smollm2-135m), a hub id, or a local mlx-lm folder.",
    )
    data_dir: Path = Field(
        default_factory=default_data_dir,
        description="Folder for models, the embedded server's files and logs.",
    )
    strategy: Literal["auto", "packed", "broadcast"] = Field(
        default="auto", description="How trees are evaluated; auto: packed if it agrees with the model, else broadcast."
    )
    pass_tokens: int = Field(
        default=8192, ge=256, description="Most tokens in one forward pass; a larger tree is split by branches."
    )
    prefix_cache_mb: int = Field(
        default=0, ge=0, description="Bytes (in MiB) that cached prefixes may hold; 0: a share of the device's memory."
    )
