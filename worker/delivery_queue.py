"""The sender's side of the deliveries in Redis: claim under a lease, look, put back, end.

A claim moves a delivery's due time to the end of its lease, so what a dead sender held falls due again by itself. It
takes from each endpoint only up to its bound, so one dead endpoint's backlog neither fills the sender nor is walked.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

from redis.asyncio import Redis
from rq.utils import as_text

from worker import keys
from worker.deliveries import DELIVERY, ENDPOINTS, KEEP_S, PENDING, QUEUE, WAKE

DISABLED = "fieldcast:webhooks:disabled:"  # + hash of the URL; set by a 410
MIN_WAIT_S = 0.02
KEEP_ENDED_S = 86400  # how long an ended delivery can be looked at
KEEP_DISABLED_S = 30 * 86400

_CLAIM = (
    keys.EVEN_WHEN_FULL
    + """
local now, per_endpoint, room = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
local busy, claimed = cjson.decode(ARGV[5]), {}
for _, endpoint in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 1000)) do
  if room <= 0 then break end
  local queue = ARGV[6] .. endpoint
  local free = math.min(per_endpoint - (busy[endpoint] or 0), room)
  if free > 0 then
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', queue, '-inf', now, 'LIMIT', 0, free)) do
      redis.call('ZADD', queue, ARGV[2], id)
      claimed[#claimed + 1] = {endpoint, id}
      room = room - 1
    end
  end
  local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  if #first == 0 then redis.call('ZREM', KEYS[1], endpoint)
  -- Still due means at its bound: looked at again when one of its deliveries is settled, or in a second.
  elseif tonumber(first[2]) <= now then redis.call('ZADD', KEYS[1], now + 1, endpoint)
  else redis.call('ZADD', KEYS[1], first[2], endpoint) end
end
return claimed
"""
)

# KEYS: endpoints, pending, wake, the delivery. ARGV: endpoint, id, time of the next attempt ('' when ended), now,
# prefix of the queues, how long the delivery is kept, how many attempts to count, and what is noted of it: fields and
# their values.
_SETTLE = (
    keys.EVEN_WHEN_FULL
    + """
-- The body of one that has ended is of no more use, and of some to a thief.
if ARGV[3] == '' then redis.call('HDEL', KEYS[4], 'body', 'next_attempt_at') end
redis.call('HSET', KEYS[4], unpack(ARGV, 8))
if ARGV[7] ~= '0' then redis.call('HINCRBY', KEYS[4], 'attempts', ARGV[7]) end
redis.call('EXPIRE', KEYS[4], ARGV[6])
local queue = ARGV[5] .. ARGV[1]
if ARGV[3] == '' then
  redis.call('ZREM', queue, ARGV[2])
  redis.call('ZREM', KEYS[2], ARGV[2])
else redis.call('ZADD', queue, 'XX', ARGV[3], ARGV[2]) end
local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
if #first == 0 then redis.call('ZREM', KEYS[1], ARGV[1])
else
  redis.call('ZADD', KEYS[1], first[2], ARGV[1])
  -- A sender that waits has not seen this due time. It looks by itself every second, so later ones need no call.
  local soon = tonumber(first[2]) <= tonumber(ARGV[4]) + 1
  if soon and redis.call('LLEN', KEYS[3]) == 0 then redis.call('LPUSH', KEYS[3], 1) end
end
"""
)

# KEYS: what disables the URL. ARGV: now, how long it does.
_DISABLE = keys.EVEN_WHEN_FULL + "redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])"


@dataclass(frozen=True)
class Claimed:
    """A delivery that this sender holds until its lease ends."""

    endpoint: str
    id: str


@dataclass(frozen=True)
class Delivery:
    """One event for one URL. `attempts` have ended and sent `body`; `secret` is None for the service's own."""

    job_id: str
    event: str
    url: str
    secret: str | None
    created_at: float
    state: str
    attempts: int
    body: str | None


async def claim(
    redis: Redis, *, lease_s: float, per_endpoint: int, room: int, busy: Mapping[str, int]
) -> list[Claimed]:
    """Takes what is due: at most `room`, and per endpoint at most `per_endpoint` less what `busy` counts already."""
    now = time.time()
    found = await redis.eval(
        _CLAIM, 1, ENDPOINTS, str(now), str(now + lease_s), str(per_endpoint), str(room), json.dumps(dict(busy)), QUEUE
    )
    return [Claimed(as_text(endpoint), as_text(delivery)) for endpoint, delivery in found]


async def wait_for_due(redis: Redis, timeout_s: float) -> None:
    """Returns when a delivery is added, when the next retry falls due, or after `timeout_s`."""
    first = await redis.zrange(ENDPOINTS, 0, 0, withscores=True)
    due_in_s = float(first[0][1]) - time.time() if first else timeout_s
    # At least a little: what is due now and was not claimed has no room. (And 0 would mean: for ever.)
    await redis.blpop([WAKE], timeout=min(max(due_in_s, MIN_WAIT_S), timeout_s))


async def read(redis: Redis, claimed: Claimed) -> Delivery | None:
    """The delivery, or None when it is no longer kept."""
    raw = await redis.hgetall(DELIVERY + claimed.id)
    fields = {as_text(k): as_text(v) for k, v in raw.items()}
    if "url" not in fields:
        return None
    return Delivery(
        job_id=fields["job_id"],
        event=fields["event"],
        url=fields["url"],
        secret=fields["secret"] or None,
        created_at=float(fields["created_at"]),
        state=fields["state"],
        attempts=int(fields.get("attempts", 0)),
        body=fields.get("body"),
    )


async def put_back(redis: Redis, claimed: Claimed, *, due_at: float, body: str, attempt: dict[str, str]) -> None:
    """The attempt failed: records it, keeps the body for the next one and gives the claim up until `due_at`."""
    noted = {**attempt, "body": body, "next_attempt_at": str(due_at)}
    await _settle(redis, claimed, due_at=str(due_at), keep_s=KEEP_S, attempts=1, noted=noted)


async def end(redis: Redis, claimed: Claimed, *, state: str, attempt: dict[str, str] | None = None) -> None:
    """The delivery has ended: `state` is "delivered", "failed" or "dropped". `attempt` is its last, if it had one."""
    noted = {**(attempt or {}), "state": state, "secret": ""}
    await _settle(redis, claimed, due_at="", keep_s=KEEP_ENDED_S, attempts=int(attempt is not None), noted=noted)


async def disable(redis: Redis, url: str) -> None:
    """The URL's owner wants no more (410 Gone)."""
    await redis.eval(_DISABLE, 1, _disabled_key(url), str(time.time()), str(KEEP_DISABLED_S))


async def is_disabled(redis: Redis, url: str) -> bool:
    return bool(await redis.exists(_disabled_key(url)))


async def _settle(
    redis: Redis, claimed: Claimed, *, due_at: str, keep_s: int, attempts: int, noted: Mapping[str, str]
) -> None:
    found = [ENDPOINTS, PENDING, WAKE, DELIVERY + claimed.id]
    args = [claimed.endpoint, claimed.id, due_at, str(time.time()), QUEUE, str(keep_s), str(attempts)]
    await redis.eval(_SETTLE, len(found), *found, *args, *(word for pair in noted.items() for word in pair))


def _disabled_key(url: str) -> str:
    return DISABLED + hashlib.sha256(url.encode()).hexdigest()
