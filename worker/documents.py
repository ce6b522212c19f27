"""Documents in Redis: stored once by hash, kept while a job needs them. Imports keys only.

A document's users are a set of job ids beside it. Submitting adds one in the same transaction that stores the text; a
job that ends takes itself out, and the last one starts the document's clock. Until then it does not expire, however
long the queue is; the backstop only removes what was orphaned by hand (a job deleted behind Fieldcast's back).
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from worker import keys

BACKSTOP_S = 30 * 86_400

CONTEXT_ID = re.compile(r"[0-9a-f]{64}")

# A script that ends jobs begins with this: the job `id` no longer needs the document, which is kept `keep_s` seconds
# once nobody does.
RELEASE = f"""
local function release(context, id, keep_s)
  local document = '{keys.document("")}' .. context
  local users = document .. '{keys.DOCUMENT_USERS_SUFFIX}'
  redis.call('SREM', users, id)
  if redis.call('SCARD', users) == 0 then redis.call('EXPIRE', document, keep_s) end
end
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


def is_id(context: object) -> bool:
    """Is this what `context_id` returns?"""
    return isinstance(context, str) and CONTEXT_ID.fullmatch(context) is not None


def is_text_of(text: str, context: str) -> bool:
    """Does this text have this id?"""
    return context_id(text) == context
