"""Every Redis key and channel of the queue side, but the webhooks' own (deliveries.py). Imports nothing.

RQ's own keys (rq:queue:fieldcast, rq:job:<id>, rq:results:<id>, its registries) are RQ's; rq-dashboard reads them.
"""

from __future__ import annotations

# The first line of every script here: jobs must be able to end when the server has used up its memory (Redis 7).
EVEN_WHEN_FULL = "#!lua flags=allow-oom\n"

QUEUE = "fieldcast"  # the one RQ queue
QUEUE_LIST = f"rq:queue:{QUEUE}"
RQ_QUEUES = "rq:queues"  # RQ's set of queues
STARTED = f"rq:wip:{QUEUE}"  # RQ's registry of started executions: "<job>:<execution>" by the end of its lease
CANCELED = f"rq:canceled:{QUEUE}"
FAILED = f"rq:failed:{QUEUE}"
FINISHED = f"rq:finished:{QUEUE}"

DONE_CHANNEL = "fieldcast:done"  # pub/sub; {"ids": [...]} of jobs that have just ended
SLOTS = "fieldcast:slots"  # set of worker slots that ever had a worker
CRASHES = "fieldcast:crashes"  # hash: job id, and how many worker processes died while they ran it
COSTS = "fieldcast:costs"  # hash: id of a job that has not ended, "<context tokens>,<schema tokens>"
TURNS = "fieldcast:turns"  # hash of the claim: who was served when (claim.py)
BULK_TENANTS = "fieldcast:bulk_tenants"  # set: tags of tenants of whom bulk jobs may wait
REQUEUES = "fieldcast_requeues"  # field of a job's hash: how often it was queued again by hand
DOCUMENT_USERS_SUFFIX = ":users"


def job(job_id: str) -> str:
    return f"rq:job:{job_id}"


def results(job_id: str) -> str:
    """RQ's stream of a job's results; the last entry counts."""
    return f"rq:results:{job_id}"


def document(context_id: str) -> str:
    """The text of a context, by the hash of it."""
    return f"fieldcast:document:{context_id}"


def document_users(context_id: str) -> str:
    """Set of the job ids that need the document."""
    return document(context_id) + DOCUMENT_USERS_SUFFIX


def claimed(slot: str) -> str:
    """List of the ids that a slot's worker has taken from the queue and not yet started."""
    return f"{QUEUE_LIST}:claimed:{slot}"


def owner(slot: str) -> str:
    """Who holds a worker slot; expires with the lease."""
    return f"fieldcast:owner:{slot}"


def worker(slot: str) -> str:
    """JSON of what the slot's worker has loaded and when it last made a step; expires with the lease."""
    return f"fieldcast:worker:{slot}"
