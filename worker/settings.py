"""All settings of Fieldcast, read from the environment with the prefix FIELDCAST_ (`fieldcast config` prints them)."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Self
from urllib.parse import quote

from pydantic import Field, SecretStr, model_validator

from engine.settings import ModelSettings

MAX_SOCKET_PATH_BYTES = 103  # macOS keeps socket paths in 104 bytes, the last of them zero


class Settings(ModelSettings):
    """The model's settings and the service's. Seconds end in `_s`, bytes in `_bytes`, MiB in `_mb`."""

    redis_url: str | None = Field(
        default=None,
        description="Redis or Valkey to use (redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://); "
        "none: the embedded server.",
    )
    redis_timeout_s: float = Field(
        default=10, ge=2, description="Seconds that the worker waits for an answer of Redis until it connects anew."
    )
    host: str = Field(
        default="127.0.0.1", description="Address that the API listens on; only loopback without API keys."
    )
    metrics_host: str = Field(
        default="127.0.0.1",
        description="Address that the worker's and the webhook sender's metrics ports listen on; they ask for no key.",
    )
    api_keys_file: Path | None = Field(
        default=None, description="File of the API keys (`fieldcast keys`); none: api_keys in the data folder."
    )
    port: int = Field(default=8000, ge=0, le=65535, description="Port of the API; 0: any free one.")
    worker_metrics_port: int = Field(default=9101, ge=0, le=65535, description="Port of the worker's /metrics.")
    webhooks_metrics_port: int = Field(
        default=9102, ge=0, le=65535, description="Port of the webhook sender's /metrics."
    )
    worker_slot: str = Field(
        default="", description="Name of this worker's slot, unique per Redis; empty: the host's name."
    )
    batch_rows: int = Field(default=32, ge=1, le=1024, description="Most jobs in one batch.")
    batch_tokens: int = Field(
        default=6000, ge=1, description="Estimated tokens that a batch may hold; its first job is always taken."
    )
    step_target_s: float = Field(
        default=5, gt=0, description="Seconds that a batch should take at most: slow machines get smaller batches."
    )
    claim_window: int = Field(
        default=2000,
        ge=1,
        description="Queue entries that are read at a time, and in which jobs with the same context are looked for.",
    )
    lease_s: float = Field(default=30, gt=0, description="Seconds until a silent worker's jobs count as abandoned.")
    heartbeat_s: float = Field(
        default=5, gt=0, description="Seconds between two renewals of the lease; at most half of it."
    )
    hang_grace_s: float = Field(
        default=30, gt=0, description="Seconds past its time-out until a step that never returns ends the process."
    )
    interactive_share: int = Field(
        default=3,
        ge=1,
        description="Interactive jobs that may pass the queue's front for each bulk job that waits there.",
    )
    queue_max_jobs: int = Field(default=100_000, ge=1, description="Waiting jobs from which on submissions get 429.")
    queue_max_mb: int = Field(
        default=2048, ge=1, description="Memory (MiB) that Redis may hold before submissions get 429."
    )
    max_body_bytes: int = Field(default=2_000_000, ge=1, description="Largest request body.")
    max_wait_s: int = Field(default=60, ge=0, description="Longest time that `Prefer: wait` holds an answer.")
    result_ttl_s: int = Field(default=86_400, ge=1, description="Seconds that a finished job and its result are kept.")
    webhook_secret: SecretStr | None = Field(
        default=None, description="whsec_ key that signs webhooks of jobs that bring none of their own."
    )
    webhook_allow_http: bool = Field(default=False, description="Allow plain http webhook URLs.")
    webhook_allowed_ports: tuple[int, ...] = Field(default=(443,), description="Ports that webhook URLs may use.")
    webhook_allowed_private_hosts: tuple[str, ...] = Field(
        default=(), description="Host names that webhooks may reach although their addresses are private."
    )
    webhook_timeout_s: float = Field(default=15, gt=0, description="Longest time of one webhook attempt.")
    webhook_retry_delays_s: tuple[float, ...] = Field(
        default=(5, 300, 1800, 7200, 18000, 36000, 36000), description="Waits before each retry of a webhook."
    )

    @model_validator(mode="after")
    def _lease_outlasts_heartbeats(self) -> Self:
        if self.lease_s < 2 * self.heartbeat_s:  # one may be late or lost
            raise ValueError(
                f"heartbeat_s is {self.heartbeat_s:g}; it may be at most half of lease_s, {self.lease_s:g}"
            )
        return self

    @property
    def socket_path(self) -> Path:
        """The embedded server's unix socket: in the data folder, or in the temporary one when that path is too long."""
        path = self.data_dir / "valkey.sock"
        if len(str(path.absolute()).encode()) <= MAX_SOCKET_PATH_BYTES:
            return path
        digest = hashlib.sha256(str(self.data_dir.absolute()).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"fieldcast-{digest}.sock"

    @property
    def keys_path(self) -> Path:
        """The file of the API keys, whether or not it exists."""
        return (self.api_keys_file or self.data_dir / "api_keys").expanduser()

    @property
    def connection_url(self) -> str:
        """Where Redis is."""
        return self.redis_url or socket_url(self.socket_path.absolute())


def socket_url(path: Path) -> str:
    """The URL of a server on this unix socket."""
    return f"unix://{quote(str(path))}"
