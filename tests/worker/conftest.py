"""The queue's fixtures."""

from queue_fixtures import client, drain, held, new_worker, redis, settings_for, start_worker

__all__ = ["client", "drain", "held", "new_worker", "redis", "settings_for", "start_worker"]
