"""Taking jobs from the queue, and giving them back: one atomic step each, as Lua on the server. Imports keys only.

A batch is filled like this, while the row limit and the token budget allow: the next job in turn, then those of the
first `window` entries that share its context (their ids begin alike), then the next job in turn, and so on. In turn is
the oldest interactive job, but after `interactive_share` of those the oldest bulk job if one waits. A job that was
running when a worker died runs alone, and so does an id that Fieldcast did not make. What cannot be a job's id at all
is thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.exceptions import OutOfMemoryError
from rq.utils import as_text

from worker import keys

# KEYS: queue, claimed, costs, crashes, bypassed. ARGV: rows, tokens, window, interactive share, leader (or '').
# A leader is a job that is in the claimed list already (BLMOVE put it there).
CLAIM = (
    keys.EVEN_WHEN_FULL
    + """
local queue, claimed, costs, crashes, bypassed = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local rows, tokens, window, share = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local leader = ARGV[5]
local ids = redis.call('LRANGE', queue, 0, window - 1)
local taken, out, spent, known, costs_of = {}, {}, 0, {}, {}

local function junk(id) return id == '' or string.find(id, '[^%w_-]') ~= nil end
local function ours(id) return #id == 49 and string.sub(id, 17, 17) == '-' end
local function alone(id) return not ours(id) or redis.call('HEXISTS', crashes, id) == 1 end
local function cost(id)
  if not costs_of[id] then
    local found = redis.call('HGET', costs, id) or ''
    local context, schema, lane = string.match(found, '^(%d+),(%d+),(%a+)$')
    costs_of[id] = {tonumber(context or 0), tonumber(schema or 0), lane or 'bulk'}
  end
  return unpack(costs_of[id])
end
local function take(i, tokens_of)
  redis.call('LREM', queue, 1, ids[i])  -- ends at the first hit: costs the position, not the length
  taken[i] = true
  if known[ids[i]] or junk(ids[i]) then return end
  known[ids[i]] = true
  redis.call('RPUSH', claimed, ids[i])
  out[#out + 1] = ids[i]
  spent = spent + tokens_of
end
local function in_turn()  -- the index of the next job, and whether it goes past a waiting bulk job
  local interactive, bulk = nil, nil
  for i = 1, #ids do
    if not taken[i] then
      local _, _, lane = cost(ids[i])
      if lane == 'interactive' then interactive = i else bulk = i; break end
    end
  end
  if interactive and bulk and tonumber(redis.call('GET', bypassed) or '0') >= share then return bulk, false end
  if interactive then return interactive, bulk ~= nil end
  return bulk, false
end
local function siblings(id)
  if not ours(id) then return end
  local context = string.sub(id, 1, 17)
  for i = 1, #ids do
    if #out >= rows then return end
    if not taken[i] and string.sub(ids[i], 1, 17) == context and not alone(ids[i]) then
      local _, schema = cost(ids[i])
      if spent + schema <= tokens then take(i, schema) end
    end
  end
end

if leader ~= '' then
  if junk(leader) then
    redis.call('LREM', claimed, 0, leader)
    return out
  end
  out[1], known[leader] = leader, true
  local context, schema = cost(leader)
  spent = context + schema
  if alone(leader) then return out end
  siblings(leader)
end
while #out < rows do
  local i, passes = in_turn()
  if not i then break end
  local id = ids[i]
  if known[id] or junk(id) then take(i, 0)
  else
    local context, schema = cost(id)
    local by_itself = alone(id)
    if #out > 0 and (by_itself or spent + context + schema > tokens) then break end
    if passes then redis.call('INCR', bypassed) else redis.call('DEL', bypassed) end
    take(i, context + schema)
    if by_itself then break end
    siblings(id)
  end
end
return out
"""
)

# KEYS: queue, claimed, the slot's owner. ARGV: job key prefix, us ('' for a slot that is not ours). Gives claimed jobs
# that never started back to the queue's front, in order; but not under the hands of another owner, who may be about to
# start them.
GIVE_BACK = (
    keys.EVEN_WHEN_FULL
    + """
local owner = redis.call('GET', KEYS[3])
if owner and owner ~= ARGV[2] then return 0 end
local count = 0
while true do
  local id = redis.call('RPOP', KEYS[2])
  if not id then return count end
  if redis.call('HGET', ARGV[1] .. id, 'status') == 'queued' then
    redis.call('LPUSH', KEYS[1], id)
    count = count + 1
  end
end
"""
)

# KEYS: owner. ARGV: us, lease in milliseconds, the dead owner that we saw (or ''). 1: the slot is ours.
TAKE_SLOT = (
    keys.EVEN_WHEN_FULL
    + """
local owner = redis.call('GET', KEYS[1])
if not owner or owner == ARGV[1] or owner == ARGV[3] then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
return 0
"""
)


class Claims:
    """The queue as one worker slot takes from it. `owner` is what the slot's owner key holds while the slot is ours;
    `tokens` may be set anew between two claims."""

    def __init__(
        self,
        redis: Redis,
        slot: str,
        owner: str,
        *,
        rows: int,
        tokens: int,
        window: int,
        interactive_share: int,
    ) -> None:
        self._redis, self._slot, self._owner = redis, slot, owner
        self._claimed = keys.claimed(slot)
        self.tokens = tokens
        self._rows, self._window, self._interactive_share = rows, window, interactive_share
        self._claim = redis.register_script(CLAIM)
        self._give_back = redis.register_script(GIVE_BACK)

    def take(self, leader: str | bytes = "") -> list[str]:
        """Ids of a batch, now in this slot's claimed list; empty when nothing waits."""
        taken: Sequence[Any] = self._claim(
            keys=[keys.QUEUE_LIST, self._claimed, keys.COSTS, keys.CRASHES, keys.BYPASSED],
            args=[self._rows, self.tokens, self._window, self._interactive_share, leader],
        )
        return [as_text(job_id) for job_id in taken]

    def wait(self, timeout_s: float) -> list[str]:
        """As `take`, but waits for a job when the queue is empty. Meant for an empty queue: it takes the head."""
        try:
            leader: Any = self._redis.blmove(keys.QUEUE_LIST, self._claimed, timeout_s)  # type: ignore[arg-type]
        except OutOfMemoryError:  # nothing can be queued now either
            time.sleep(timeout_s)
            return []
        return self.take(leader) if leader is not None else []

    def give_back(self, slot: str | None = None) -> int:
        """Put this slot's (or another, unowned slot's) claimed jobs back to the queue's front. How many there were."""
        owner, slot = ("", slot) if slot is not None else (self._owner, self._slot)
        found = [keys.QUEUE_LIST, keys.claimed(slot), keys.owner(slot)]
        return int(self._give_back(keys=found, args=[keys.job(""), owner]))
