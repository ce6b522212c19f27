"""Documents in Redis: stored once by hash, kept while a job needs them. Imports keys only.

A document's users are a set of job ids beside it. Submitting adds one in the same transaction that stores the text; a
job that ends takes itself out, and the last one starts the document's clock. Until then it does not expire, however
long the queue is; the backstop only removes what was orphaned by hand (a job deleted behind Fieldcast's back).
"""

from __future__ import annotations

import hashlib
from typing import Any

from worker import keys

BACKSTOP_S = 30 * 86_400

# KEYS: document, users. ARGV: job id, seconds to keep the document once nobody needs it.
RELEASE = """
redis.call('SREM', KEYS[2], ARGV[1])
if redis.call('SCARD', KEYS[2]) == 0 then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return 1
"""


def context_id(context: str) -> str:
    """SHA-256 of the text, 64 hex digits."""
    return hashlib.sha256(context.encode()).hexdigest()


def store(pipeline: Any, context: str, job_id: str) -> None:
    """Buffers the commands that store a document for a job, into a redis-py pipeline of either kind."""
    found = context_id(context)
    pipeline.set(keys.document(found), context, ex=BACKSTOP_S)
    pipeline.sadd(keys.document_users(found), job_id)
    pipeline.expire(keys.document_users(found), BACKSTOP_S)


def release(pipeline: Any, context: str, job_id: str, keep_s: int) -> None:
    """Buffers the commands by which a job that has ended stops needing the document with the id `context`."""
    pipeline.eval(RELEASE, 2, keys.document(context), keys.document_users(context), job_id, keep_s)


def is_text_of(text: str, context: str) -> bool:
    """Does this text have this id?"""
    return context_id(text) == context
