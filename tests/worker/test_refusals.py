"""What others push into the queue is data, never code: it fails with a typed problem, and the worker goes on."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from queue_client import Client, ids_in, queued_ids
from redis import Redis
from rq import Queue
from rq.job import Job as RQJob
from rq.serializers import JSONSerializer, PickleSerializer
from service import SCHEMA

from worker import documents, keys
from worker.batch_worker import BatchWorker, FieldcastJob, FunctionRefused
from worker.job_record import Job
from worker.jobs import FUNCTION

Drain = Callable[..., BatchWorker]


def problem_in(redis: Redis, job_id: str) -> dict[str, Any]:
    """The stored problem of a failed job, by RQ's own reading."""
    job = RQJob.fetch(job_id, connection=redis, serializer=JSONSerializer)
    assert job.is_failed
    assert ids_in(redis, keys.STARTED) == []
    return json.loads(job.latest_result().exc_string)["error"]


def test_os_system_enqueued_by_hand_is_refused_and_not_run(
    redis: Redis, client: Client, drain: Drain, tmp_path: Path
) -> None:
    mark = tmp_path / "was-run"
    by_hand = Queue(keys.QUEUE, connection=redis, serializer=JSONSerializer).enqueue("os.system", f"touch {mark}")
    ours = client.submit("fine")
    drain()
    assert problem_in(redis, by_hand.id)["type"] == "function_refused"
    assert not mark.exists()
    assert client.status(ours) == "completed"


def test_a_job_cannot_be_made_to_import_its_function(redis: Redis) -> None:
    job = FieldcastJob.create("os.system", args=("true",), connection=redis, serializer=JSONSerializer)
    with pytest.raises(FunctionRefused):
        _ = job.func


def test_a_pickled_payload_is_refused_and_not_unpickled(
    redis: Redis, client: Client, drain: Drain, tmp_path: Path
) -> None:
    mark = tmp_path / "was-run"
    queue = Queue(keys.QUEUE, connection=redis, serializer=PickleSerializer)
    by_hand = queue.enqueue(FUNCTION, _Touch(str(mark)), meta={"context": "x"})
    ours = client.submit("fine")
    drain()
    assert problem_in(redis, by_hand.id)["type"] == "payload_invalid"
    assert not mark.exists()
    assert client.status(ours) == "completed"


class _Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self._path),)


def forge(redis: Redis, job: Job, **fields: Any) -> None:
    """Overwrites parts of a stored job, behind the queue's back."""
    redis.hset(f"rq:job:{job.id}", mapping=fields)


def payload(context: str, **changes: Any) -> bytes:
    given = {"context": documents.context_id(context), "schema": SCHEMA.to_dict(), "options": {}, **changes}
    return zlib.compress(json.dumps([FUNCTION, None, [given], {}]).encode())


GARBAGE: dict[str, dict[str, Any]] = {
    "not compressed, not JSON": {"data": b"\x80\x04garbage"},
    "empty": {"data": b""},
    "JSON of another shape": {"data": b'{"a": 1}'},
    "no arguments": {"data": json.dumps([FUNCTION, None, [], {}])},
    "an argument of another type": {"data": json.dumps([FUNCTION, None, ["x"], {}])},
    "a schema of another type": {"data": payload("fine", schema=[1])},
    "a time-out that is no number": {"timeout": "soon"},
    "a TTL that is no number": {"result_ttl": "long"},
    "a time that is no time": {"created_at": "yesterday"},
    "meta that is not JSON": {"meta": b"\x80\x04garbage"},
    "meta that is a list": {"meta": "[]"},
    "a webhook of another type": {"meta": json.dumps({"webhook": "https://example.com"})},
    "a webhook without events": {"meta": json.dumps({"webhook": {"url": "https://example.com", "secret": None}})},
    "a webhook whose URL is none": {
        "meta": json.dumps({"webhook": {"url": "nowhere", "events": ["job.failed"], "secret": None}})
    },
    "a confidence that is no number": {"meta": json.dumps({"min_confidence": "high"})},
    "a preset that is no name": {"meta": json.dumps({"preset": ["a"]})},
}


@pytest.mark.parametrize("fields", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_a_job_fails_that_job_alone(
    fields: dict[str, Any], redis: Redis, client: Client, drain: Drain
) -> None:
    garbage, ours = client.submit("fine"), client.submit("fine")
    if "meta" in fields and fields["meta"][:1] == "{":
        about = {"context": documents.context_id("fine"), **json.loads(fields["meta"])}
        fields = {"meta": json.dumps(about)}
    forge(redis, garbage, **fields)
    drain()
    failed = client.fetch(garbage)
    assert (failed.status, failed.error and failed.error["type"]) == ("failed", "payload_invalid")
    assert client.status(ours) == "completed"
    assert ids_in(redis, keys.STARTED) == queued_ids(redis) == []


def test_ids_without_a_job_and_ids_that_are_none_are_dropped(redis: Redis, client: Client, drain: Drain) -> None:
    redis.rpush(keys.QUEUE_LIST, "gone", "no job: at all", b"\xff\xfe", "")
    redis.set("rq:job:text", "not a hash")
    redis.rpush(keys.QUEUE_LIST, "text")
    ours = client.submit("fine")
    drain()
    assert client.status(ours) == "completed"
    assert queued_ids(redis) == ids_in(redis, keys.claimed("mac")) == ids_in(redis, keys.STARTED) == []
    assert not redis.exists("rq:job:gone")


def test_a_document_that_is_gone_is_a_typed_failure(redis: Redis, client: Client, drain: Drain) -> None:
    job = client.submit("fine")
    redis.delete(keys.document(documents.context_id("fine")))
    drain()
    failed = client.fetch(job)
    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error["type"] == "document_missing"


@pytest.mark.parametrize("text", [b"another text", b"\xff\xfe"])
def test_a_text_that_is_not_what_its_id_says_is_not_read(
    text: bytes, redis: Redis, client: Client, drain: Drain
) -> None:
    job = client.submit("fine")
    redis.set(keys.document(documents.context_id("fine")), text)
    worker = drain()
    failed = client.fetch(job)
    assert failed.error is not None
    assert failed.error["type"] == "document_missing"
    assert worker._runner.calls == []


def test_a_payload_cannot_name_another_job_s_document(redis: Redis, client: Client, drain: Drain) -> None:
    mine, theirs = client.submit("mine"), client.submit("their secret")
    forge(redis, mine, data=payload("their secret"))
    drain()
    assert client.fetch(mine).error is not None
    forged = client.submit("mine")
    forge(redis, forged, data=payload("their secret"), meta=json.dumps({"context": theirs.id[:16] + "0" * 48}))
    drain()
    assert client.status(forged) == "failed"
