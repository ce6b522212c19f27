"""The worker's Prometheus series, and how a process serves its series on a port of its own. Imports no mlx.

Every process has one registry (no multiprocess mode): this file's `REGISTRY` is the worker's; the API's is in
api/metrics.py, the webhook sender's in worker/webhook_metrics.py. A label is never a job, tenant, field or URL.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from threading import Thread
from wsgiref.simple_server import WSGIServer

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

import presets
from engine.result import BatchStats
from worker.process_metrics import ProcessMetrics

# `_created` series double the number of series and no rule or panel reads them.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

PREFIX = "fieldcast"
CUSTOM_PRESET = "custom"
STATUSES = ("completed", "failed")  # how a job ends here; a cancelled one ends, and is counted, in the API
OUTCOMES = ("completed", "failed", "retried", "cancelled", "timed_out", "lost")
PHASES = {"queue": "queue_ms", "prefill": "prefill_ms", "eval": "eval_ms", "total": "total_ms"}

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
JOBS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
CONFIDENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1)


def new_registry() -> CollectorRegistry:
    """A registry that already holds the process's own CPU time, memory and start time."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(ProcessMetrics())
    return registry


REGISTRY = new_registry()

_finished = Counter("jobs_finished", "Jobs that ended.", ["preset", "status"], namespace=PREFIX, registry=REGISTRY)
_attempts = Counter("job_attempts", "Attempts at a job that ended.", ["outcome"], namespace=PREFIX, registry=REGISTRY)
_duration = Histogram(
    "job_duration_seconds",
    "Time of a finished job: waiting in the queue, filling the cache, evaluating the tree, and in all.",
    ["preset", "phase"],
    namespace=PREFIX,
    registry=REGISTRY,
    buckets=SECONDS,
)
_batch_jobs = Histogram("batch_jobs", "Jobs in one batch.", namespace=PREFIX, registry=REGISTRY, buckets=JOBS)
_batch_tokens = Histogram(
    "batch_tokens", "Tokens computed for one batch.", namespace=PREFIX, registry=REGISTRY, buckets=TOKENS
)
_passes = Counter("forward_passes", "Forward passes of the model.", namespace=PREFIX, registry=REGISTRY)
_prompt_tokens = Counter(
    "prompt_tokens",
    "Prompt tokens, computed or taken from the prefix cache.",
    ["source"],
    namespace=PREFIX,
    registry=REGISTRY,
)
_worker_up = Gauge("worker_up", "1 while the worker takes jobs.", namespace=PREFIX, registry=REGISTRY)
_last_step = Gauge(
    "worker_last_step_timestamp_seconds",
    "Unix time of the worker's last finished step.",
    namespace=PREFIX,
    registry=REGISTRY,
)
_memory = Gauge(
    "mlx_memory_bytes",
    "Memory that MLX holds, and (limit) the most it may.",
    ["kind"],
    namespace=PREFIX,
    registry=REGISTRY,
)
_prefix_bytes = Gauge("prefix_cache_bytes", "Size of the prefix cache.", namespace=PREFIX, registry=REGISTRY)
_prefix_hits = Counter("prefix_cache_hits", "Trunks found in the prefix cache.", namespace=PREFIX, registry=REGISTRY)
_confidence = Histogram(
    "field_confidence",
    "Confidence of each answered field.",
    ["preset"],
    namespace=PREFIX,
    registry=REGISTRY,
    buckets=CONFIDENCES,
)
_low_confidence = Counter(
    "low_confidence_fields",
    "Fields answered below the job's min_confidence.",
    ["preset"],
    namespace=PREFIX,
    registry=REGISTRY,
)
_build_info = Gauge(
    "build_info",
    "Always 1; version, model and strategy are its labels.",
    ["version", "model", "strategy"],
    namespace=PREFIX,
    registry=REGISTRY,
)
_prefix_hits_seen = 0
_PHYSICAL_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def preset_label(name: str | None) -> str:
    """The preset's name when it ships with Fieldcast, else `custom`: clients must not be able to add series."""
    return name if name is not None and name in presets.names() else CUSTOM_PRESET


def preset_labels() -> list[str]:
    """Every value the `preset` label can have."""
    return [*presets.names(), CUSTOM_PRESET]


def observe_batch(stats: BatchStats) -> None:
    """One `Engine.run` call came back."""
    _batch_jobs.observe(stats.requests)
    _batch_tokens.observe(stats.computed_tokens)
    _passes.inc(stats.passes)
    _prompt_tokens.labels("computed").inc(stats.computed_tokens)
    _prompt_tokens.labels("cached").inc(stats.cached_tokens)
    stepped()


def observe_finished(
    preset: str | None,
    status: str,
    timings: Mapping[str, float | None] | None = None,
    confidences: Iterable[float] = (),
    low_confidence: int = 0,
) -> None:
    """One job ended. `timings` are the job's public ones (`queue_ms`, `prefill_ms`, `eval_ms`, `total_ms`)."""
    label = preset_label(preset)
    _finished.labels(label, status).inc()
    for phase, key in PHASES.items():
        milliseconds = (timings or {}).get(key)
        if milliseconds is not None:
            _duration.labels(label, phase).observe(milliseconds / 1000)
    for confidence in confidences:
        _confidence.labels(label).observe(confidence)
    _low_confidence.labels(label).inc(low_confidence)


def attempt(outcome: str) -> None:
    """One attempt at one job ended; `outcome` is one of `OUTCOMES`."""
    _attempts.labels(outcome).inc()


def set_worker_up(up: bool = True) -> None:
    """The worker has its model and takes jobs, or has stopped taking them."""
    _worker_up.set(1 if up else 0)
    if up:
        stepped()  # a worker that has just started is not a stuck one


def stepped(at: float | None = None) -> None:
    """The worker finished a step (a batch, or a look at an empty queue) at this Unix time, by default now."""
    _last_step.set(time.time() if at is None else at)


def build_info(version: str, model: str, strategy: str) -> None:
    """Says what runs. A later call replaces the earlier one."""
    _build_info.clear()
    _build_info.labels(version, model, strategy).set(1)


def set_memory(memory: Mapping[str, int]) -> None:
    """`Engine.memory()`: bytes by kind (active, cache, peak, and limit; without one, the machine's memory is it)."""
    # The limit makes headroom a ratio that a rule can watch on any machine.
    for kind, size in {"limit": _PHYSICAL_BYTES, **memory}.items():
        _memory.labels(kind).set(size)


def set_prefix_cache(size_bytes: int, hits_total: int) -> None:
    """The prefix cache's size now, and its hits since the engine was loaded."""
    global _prefix_hits_seen
    _prefix_bytes.set(size_bytes)
    # A count lower than the last one means that a new engine was loaded, which started again at 0.
    new_hits = hits_total - _prefix_hits_seen if hits_total >= _prefix_hits_seen else hits_total
    _prefix_hits.inc(new_hits)
    _prefix_hits_seen = hits_total


class MetricsServer:
    """Serves a registry over HTTP from a thread until `close`."""

    def __init__(self, server: WSGIServer, thread: Thread) -> None:
        self._server, self._thread = server, thread

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(port: int, host: str = "127.0.0.1", registry: CollectorRegistry = REGISTRY) -> MetricsServer:
    """Serves `registry` on `http://host:port/metrics`; port 0 takes a free one. Raises `OSError` when it is taken."""
    return MetricsServer(*start_http_server(port, addr=host, registry=registry))


def _start_at_zero() -> None:
    # A series that first appears at 1 hides that increase from rate() and increase(): start every known one at 0.
    for label in preset_labels():
        for status in STATUSES:
            _finished.labels(label, status)
        for phase in PHASES:
            _duration.labels(label, phase)
        _confidence.labels(label)
        _low_confidence.labels(label)
    for outcome in OUTCOMES:
        _attempts.labels(outcome)
    for source in ("computed", "cached"):
        _prompt_tokens.labels(source)


_start_at_zero()
