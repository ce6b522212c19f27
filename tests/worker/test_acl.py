"""`deploy/redis/users.acl`: everything that Fieldcast does is allowed to that user, and little else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from queue_client import ROOT, Client, Part, until
from redis import Redis
from redis.exceptions import NoPermissionError
from service import PART, api_client

from worker import jobs, keys
from worker.deliveries import DELIVERY
from worker.jobs import Webhook
from worker.settings import Settings

if TYPE_CHECKING:
    from deploy.embedded import EmbeddedValkey

ACL = (ROOT / "deploy" / "redis" / "users.acl").read_text()
WEBHOOK = Webhook("https://127.0.0.1/hook", ("job.completed", "job.failed"), "whsec_" + "a" * 32)


@pytest.fixture
def limited(valkey: EmbeddedValkey, redis: Redis) -> str:
    """The URL with which the file's user connects."""
    _, name, *rules = ACL.split()
    redis.execute_command("ACL", "SETUSER", name, *rules)
    redis.execute_command("ACL", "LOG", "RESET")
    return f"unix://{name}:change-me@{valkey.socket_path}"


@pytest.fixture
def sender(limited: str, tmp_path: Path) -> Iterator[None]:
    """A webhook sender of its own process; the address that it is to post to is refused."""
    environment = {
        **os.environ,
        "FIELDCAST_REDIS_URL": limited,
        "FIELDCAST_DATA_DIR": str(tmp_path),
        "FIELDCAST_WEBHOOKS_METRICS_PORT": "0",
    }
    process = subprocess.Popen([sys.executable, "-c", PART.format("webhooks")], cwd=ROOT, env=environment)
    yield
    process.terminate()
    process.wait(60)


def test_it_is_one_user_with_a_password_to_replace() -> None:
    assert ACL.startswith("user fieldcast on >change-me ")
    assert ACL.count("\n") == 1


def test_nothing_that_fieldcast_does_is_denied(
    redis: Redis, limited: str, sender: None, start_worker: Callable[..., Part], tmp_path: Path
) -> None:
    client = Client(limited)
    first = start_worker(redis_url=limited, heartbeat_s=0.3)
    gate = tmp_path / "gate"
    held = client.submit_all([f"hold {gate}"] * 2)
    until(lambda: client.status(held[0]) == "in_progress")
    first.process.kill()
    first.process.wait()
    gate.touch()
    second = start_worker(redis_url=limited, heartbeat_s=0.3)
    client.until_ended([*held, *client.submit_all(["fine", "raise"], webhook=WEBHOOK)])
    unwanted = client.submit(f"hold {tmp_path / 'never'}", lane="interactive")
    until(lambda: client.status(unwanted) == "in_progress")
    client.cancel(unwanted)
    client.call(jobs.delete, held[0].id)

    async def over_http() -> None:
        settings = Settings(redis_url=limited, data_dir=tmp_path)
        async with api_client(settings) as http:
            body = {"context": "fine", "schema": {"angry": {"type": "boolean"}}}
            location = (await http.post("/v1/jobs", json=body)).headers["location"]
            for path in (location, "/metrics", "/readyz", "/v1/models"):
                assert (await http.get(path)).status_code == 200, path
            held_answer = await http.get(location, headers={"prefer": "wait=1"})
            assert held_answer.status_code in (200, 202)

    asyncio.run(over_http())
    until(lambda: [redis.hget(key, "attempts") for key in redis.keys(f"{DELIVERY}*")] == [b"1"] * 2)
    second.process.terminate()
    (tmp_path / "never").touch()
    assert second.process.wait(60) == 0
    assert redis.execute_command("ACL", "LOG") == []


@pytest.mark.parametrize("command", [["FLUSHALL"], ["KEYS", "*"], ["CONFIG", "GET", "*"], ["GET", "other"]])
def test_what_it_does_not_need_is_denied(command: list[str], redis: Redis, limited: str) -> None:
    redis.set("other", "secret")
    with Redis.from_url(limited) as connection, pytest.raises(NoPermissionError):
        connection.execute_command(*command)
    assert redis.exists(keys.QUEUE_LIST) == 0
