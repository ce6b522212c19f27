"""The worker process: loads the engine, then answers jobs until it is told to stop. The only place that does both."""

from __future__ import annotations

import re
import socket
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from structlog import get_logger

from engine.errors import FieldcastError
from engine.version import __version__
from worker import connection, metrics
from worker.batch_worker import BatchWorker
from worker.runner import Answer, Question, Runner
from worker.settings import Settings

log = get_logger(__name__)


def main(settings: Settings) -> int:
    """Exit code 0 after a stop that was asked for; 1 when the model, Redis or a port cannot be had, or on a crash."""
    redis = connect(settings)
    try:
        redis.ping()
        server = metrics.serve(settings.worker_metrics_port, settings.metrics_host)
    except (RedisConnectionError, OSError) as error:
        log.error("cannot start", action="worker_error", error=f"{type(error).__name__}: {error}")
        return 1
    from engine.engine import Engine  # after the cheap checks: this takes seconds

    try:
        engine = Engine.load(settings=settings, progress=lambda text: log.info(text, action="model_load"))
    except FieldcastError as error:
        log.error(str(error), action="model_error", type=error.type)
        server.close()
        return 1
    info = engine.info
    log.info("model loaded", action="model_loaded", **info.to_dict())
    metrics.build_info(__version__, info.model, info.strategy)
    worker = BatchWorker(redis, settings, _Measured(engine), slot(settings), info.to_dict())
    worker.work(logging_level="WARNING")
    server.close()
    return 0 if worker._stop_requested else 1


def connect(settings: Settings) -> Redis:
    """The worker's own connection. Its blocking read returns after a second, so every answer has the same time."""
    return connection.connect(
        settings.connection_url,
        socket_timeout=settings.redis_timeout_s,
        socket_connect_timeout=settings.redis_timeout_s,
        health_check_interval=30,
    )


def slot(settings: Settings) -> str:
    """The settings' slot, or the host's name in characters that are safe in a key."""
    return re.sub(r"[^A-Za-z0-9-]", "-", settings.worker_slot or socket.gethostname())


class _Measured(Runner):
    """A runner whose engine's memory and cache are published after each call."""

    def answer(self, questions: Any) -> list[Answer]:
        answers: list[Answer] = super().answer(list[Question](questions))
        metrics.set_memory(self.engine.memory())
        metrics.set_prefix_cache(self.engine.prefix_cache.nbytes, self.engine.prefix_cache.hits)
        return answers
