"""Taking jobs from the queue, and giving them back: one atomic step each, as Lua on the server. Imports keys only.

A batch is filled by turns while the row limit and the token budget allow. A turn is one job, and then those that share
its document. Whose turn it is:
- the interactive lane's; but after `interactive_share` of its turns that passed waiting bulk jobs, the bulk lane's;
- in the lane, the tenant's whose last turn there is longest ago (who had none: the one whose job is first in line);
- of the tenant, the oldest job in the lane.
A job that was running when a worker died runs alone, and so does an id that Fieldcast did not make. What cannot be a
job's id at all is thrown away. tests/worker/claim_policy.py says the same in Python.

All of it is read off the ids in the queue's list (jobs.py), from the front, `window` entries at a time, until no
interactive job and no tenant with bulk jobs can be left out. Which tenants those are is a hint in a set of its own, for
only the list is sure: a tenant that is missing there (its job was pushed by RQ's tools) waits in the list's order, and
one too many costs a look through the whole list, once. Jobs that share a document are looked for in the same `window`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.exceptions import OutOfMemoryError
from rq.utils import as_text

from worker import keys

# KEYS: queue, claimed, costs, crashes, turns, bulk tenants. ARGV: rows, tokens, window, interactive share, leader (or
# ''). A leader is a job that is in the claimed list already (BLMOVE put it there).
# The turns are a hash: `turn` counts them, `bypassed` those of the interactive lane since bulk jobs wait, and each
# tenant's tag with a lane's digit has the number of its last one.
CLAIM = (
    keys.EVEN_WHEN_FULL
    + """
local queue, claimed, costs, crashes, turns, bulk_tenants = unpack(KEYS)
local rows, tokens, window, share = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local leader = ARGV[5]
local BULK, INTERACTIVE, TAKEN, TURNS_KEPT_S = '0', '1', ' ', 86400
local sub = string.sub

local function junk(id) return id == '' or string.find(id, '[^%w_-]') ~= nil end
local function ours(id) return #id == 49 and sub(id, 17, 17) == '-' end
local function alone(id) return not ours(id) or redis.call('HEXISTS', crashes, id) == 1 end
local function tenant_of(id) return ours(id) and sub(id, 1, 8) or '' end
local function cost(id)
  local context, schema = string.match(redis.call('HGET', costs, id) or '', '^(%d+),(%d+)$')
  return tonumber(context or 0), tonumber(schema or 0)
end

-- Read the list: interactive jobs, which are pushed to the front, and bulk jobs.
local ids, n, interactive, bulk, ended = {}, 0, {}, {}, false  -- the two lanes: indices of ids
local hinted, unseen, left = redis.call('SMEMBERS', bulk_tenants), {}, 0
for _, tenant in ipairs(hinted) do unseen[tenant], left = true, left + 1 end
repeat
  local more, quick, slow = redis.call('LRANGE', queue, n, n + window - 1), #interactive, #bulk
  local quick_before = quick
  for i = 1, #more do
    local id = more[i]
    n = n + 1
    ids[n] = id
    local dash, digit = string.byte(id, 17, 18)
    if digit == 49 and dash == 45 and #id == 49 then  -- '1' and '-': the quickest way to ask for ours, interactive
      quick = quick + 1
      interactive[quick] = n
    else
      slow = slow + 1
      bulk[slow] = n
      if left > 0 and unseen[tenant_of(id)] then unseen[tenant_of(id)], left = nil, left - 1 end
    end
  end
  ended = #more < window
until ended or (quick == quick_before and left == 0)
if ended then
  for tenant in pairs(unseen) do redis.call('SREM', bulk_tenants, tenant) end
end

-- Put it in order, the oldest of each lane first, and stand each tenant's jobs of a lane in line.
local order, lanes = bulk, {[INTERACTIVE] = {}, [BULK] = {}}  -- order: places to indices. Lanes: lines of places
if #interactive > 0 then
  order = {}
  for i = #interactive, 1, -1 do order[#order + 1] = interactive[i] end
  for i = 1, #bulk do order[#interactive + i] = bulk[i] end
end
local function stand_in_line(lane, from, to, only)
  local lines = {}
  for place = from, to do
    local tenant = only or tenant_of(ids[order[place]])
    local line = lines[tenant]
    if not line then
      line = {at = 1, size = 0, last_turn = tenant .. lane}
      lines[tenant] = line
      lanes[lane][#lanes[lane] + 1] = line
    end
    local size = line.size + 1
    line.size, line[size] = size, place
  end
end
stand_in_line(INTERACTIVE, 1, #interactive)
stand_in_line(BULK, #interactive + 1, n, #hinted <= 1 and (hinted[1] or ''))

-- Fill the batch.
local out, known, taken, removed, spent, full = {}, {}, {}, {}, 0, false
local last_turn, changed, counted = {}, {}, redis.call('HGETALL', turns)
for i = 1, #counted, 2 do last_turn[counted[i]] = tonumber(counted[i + 1]) end
local function set_turn(field, value)
  last_turn[field] = value
  changed[field] = value
end
local function begin_turn(id)
  local lane = ours(id) and sub(id, 18, 18) == INTERACTIVE and INTERACTIVE or BULK
  set_turn('turn', (last_turn.turn or 0) + 1)
  set_turn(tenant_of(id) .. lane, last_turn.turn)
end
local function remove(place)
  taken[place] = true
  removed[#removed + 1] = order[place]
end
local function take(place, tokens_of)
  local id = ids[order[place]]
  remove(place)
  known[id] = true
  redis.call('RPUSH', claimed, id)
  out[#out + 1] = id
  spent = spent + tokens_of
end
local function first_of(lane)  -- the place of the job whose turn it is in a lane, if one waits there
  local best, best_turn
  for _, line in ipairs(lanes[lane]) do
    while taken[line[line.at]] do line.at = line.at + 1 end
    local place, turn = line[line.at], last_turn[line.last_turn] or 0
    if place and (not best or turn < best_turn or (turn == best_turn and place < best)) then
      best, best_turn = place, turn
    end
  end
  return best
end
local blocks = {}  -- of `window` places: which of them share a document, as far as it was asked
local function siblings(id, place)
  if not ours(id) then return end
  local document, start = sub(id, 1, 17), place - (place - 1) % window
  local stop, nth = math.min(start + window - 1, n), 1
  blocks[start] = blocks[start] or {at = start, sharing = {}}
  local block, sharing = blocks[start], blocks[start].sharing
  while #out < rows do
    while not (sharing[document] and sharing[document][nth]) do
      if block.at > stop then return end
      local other = sub(ids[order[block.at]], 1, 17)
      if sharing[other] then table.insert(sharing[other], block.at) else sharing[other] = {block.at} end
      block.at = block.at + 1
    end
    local found = sharing[document][nth]
    local other = ids[order[found]]
    if not taken[found] and not known[other] and not alone(other) then
      local _, schema = cost(other)
      if spent + schema <= tokens then take(found, schema) end
    end
    nth = nth + 1
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
  begin_turn(leader)
  full = alone(leader)
  if not full then siblings(leader, 1) end
end
while not full and #out < rows do
  local quick, slow = first_of(INTERACTIVE), first_of(BULK)
  local passes = quick and slow and (last_turn.bypassed or 0) < share
  local place = (passes or not slow) and quick or slow
  if not place then break end
  local id = ids[order[place]]
  if known[id] or junk(id) then remove(place)
  else
    local context, schema = cost(id)
    full = alone(id)
    if #out > 0 and (full or spent + context + schema > tokens) then break end
    begin_turn(id)
    set_turn('bypassed', passes and (last_turn.bypassed or 0) + 1 or 0)
    take(place, context + schema)
    if not full then siblings(id, place) end
  end
end

-- Store it. All that was taken leaves the list in one walk through it.
for _, i in ipairs(removed) do redis.call('LSET', queue, i - 1, TAKEN) end
if #removed > 0 then redis.call('LREM', queue, #removed, TAKEN) end
for field, value in pairs(changed) do redis.call('HSET', turns, field, value) end
redis.call('EXPIRE', turns, TURNS_KEPT_S)
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
            keys=[keys.QUEUE_LIST, self._claimed, keys.COSTS, keys.CRASHES, keys.TURNS, keys.BULK_TENANTS],
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
