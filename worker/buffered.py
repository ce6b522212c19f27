"""Commands that RQ's own methods buffered into a pipeline, as arguments of a Lua script that decides which to run.

So RQ writes its records itself, and a whole batch still takes one round trip, with each job's condition checked in the
same atomic step. (WATCH and MULTI would take three, and be all or nothing.)
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from redis import Redis
from redis.client import Pipeline

from worker import keys

# A script begins with this. `run(at, wanted)` reads a list of commands from ARGV[at] on, runs them if they are wanted,
# and returns the index after it.
RUN = (
    keys.EVEN_WHEN_FULL
    + """
local function run(at, wanted)
  local count = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, count do
    local words = tonumber(ARGV[at])
    if wanted then redis.call(unpack(ARGV, at + 1, at + words)) end
    at = at + 1 + words
  end
  return at
end
"""
)


def take(pipeline: Pipeline) -> list[Any]:
    """What is buffered in `pipeline`, as arguments for `run`: how many commands, then each one's length and words.
    The pipeline is empty then."""
    commands = [words for words, _ in pipeline.command_stack]
    pipeline.reset()
    return [len(commands), *chain.from_iterable((len(words), *words) for words in commands)]


def run(redis: Redis, pipeline: Pipeline) -> None:
    """Run what is buffered in `pipeline`, in one step, also on a server that has used up its memory."""
    redis.eval(RUN + "run(1, true)", 0, *take(pipeline))
