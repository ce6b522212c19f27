"""Tenants: who a job belongs to. Imports nothing of Fieldcast.

A tenant's tag, 8 hex digits, begins the ids of its documents and jobs. So an id says whose it is, a claim sees it in
the queue's list without reading anything else, and two tenants never share a document. Two names with one tag are
refused where keys are read (api/keys.py).
"""

from __future__ import annotations

import hashlib
import re

DEFAULT = "default"  # whose everything is while there are no API keys
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TAG_DIGITS = 8


def tag(tenant: str) -> str:
    """8 hex digits."""
    return hashlib.sha256(f"fieldcast tenant {tenant}".encode()).hexdigest()[:TAG_DIGITS]


def owns(tenant: str, job_id: str) -> bool:
    """Is this job the tenant's?"""
    return job_id.startswith(tag(tenant))
