"""Documents in Redis: stored once per tenant, by hash, kept while a job needs them. Imports keys and tenants only.

A document's users are a set of job ids beside it. Submitting adds one in the same transaction that stores the text; a
job that ends takes itself out, and the last one starts the document's clock. Until then it does not expire, however
long the queue is; the backstop only removes what was orphaned by hand (a job deleted behind Fieldcast's back).
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from worker import keys, tenants

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

# A script that queues jobs again begins with this: the job `id` needs the document, as `store` says it. False: it is
# not there any more.
KEEP = f"""
local function keep(context, id)
  local document = '{keys.document("")}' .. context
  local users = document .. '{keys.DOCUMENT_USERS_SUFFIX}'
  if redis.call('EXPIRE', document, {BACKSTOP_S}) == 0 then return false end
  redis.call('SADD', users, id)
  redis.call('EXPIRE', users, {BACKSTOP_S})
  return true
end
"""


def context_id(text: str, tenant: str = tenants.DEFAULT) -> str:
    """64 hex digits: the tenant's tag, and SHA-256 of the tag and the text."""
    return _id(text, tenants.tag(tenant))


def store(pipeline: Any, context: str, text: str, job_id: str) -> None:
    """Buffers the commands that store the document `context` for a job, into a redis-py pipeline of either kind."""
    pipeline.set(keys.document(context), text, ex=BACKSTOP_S)
    pipeline.sadd(keys.document_users(context), job_id)
    pipeline.expire(keys.document_users(context), BACKSTOP_S)


def is_id(context: object) -> bool:
    """Is this what `context_id` returns?"""
    return isinstance(context, str) and CONTEXT_ID.fullmatch(context) is not None


def is_text_of(text: str, context: str) -> bool:
    """Does this text have this id?"""
    return _id(text, context[: tenants.TAG_DIGITS]) == context


def _id(text: str, tag: str) -> str:
    return tag + hashlib.sha256(f"{tag}{text}".encode()).hexdigest()[tenants.TAG_DIGITS :]
