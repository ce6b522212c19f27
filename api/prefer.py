"""The `Prefer` request header (RFC 7240). Imports nothing.

A preference that cannot be read is ignored, as the RFC says; it is never an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_WAIT = re.compile(r'\s*wait\s*=\s*"?(\d{1,9})"?\s*(?:;.*)?', re.IGNORECASE)


def wait_seconds(headers: Sequence[str], cap_s: int) -> int | None:
    """The first `wait=N` of the `Prefer` headers, at most `cap_s`; None when there is none."""
    for header in headers:
        for preference in header.split(","):
            found = _WAIT.fullmatch(preference)
            if found:
                return min(int(found[1]), cap_s)
    return None
