"""API keys: the file that holds their hashes, and whose a key is. Knows no HTTP.

One key a line: the tenant's name, a space, SHA-256 of the key in hex; `#` begins a comment. A key is 256 random bits:
nobody can try them all, so a plain hash is enough.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from structlog import get_logger

from engine.errors import FieldcastError
from worker import tenants

log = get_logger(__name__)

DIGEST = re.compile(r"[0-9a-f]{64}")


class KeysFileInvalid(FieldcastError):
    """The file of keys cannot be read, or a line of it is not a key's."""

    type = "keys_file_invalid"


@dataclass(frozen=True)
class ApiKey:
    """What is kept of a key. `digest`: SHA-256 of it, in hex; `note`: the line's comment."""

    tenant: str
    digest: str
    note: str = ""


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def read_keys(path: Path) -> list[ApiKey]:
    """The keys in the file; none when there is no file. Raises KeysFileInvalid."""
    keys, problems = _parse(_text(path))
    if problems:
        raise KeysFileInvalid(f"{path}: {problems[0]}")
    return keys


class ApiKeys:
    """The keys of a running service. `own`: one more, that is in no file. `required`: keys are asked for even while
    there is no file.

    The file is looked at with every request and read when it has changed, so that a revoked key ends at once. A line
    that cannot be read is logged and gives nobody access. Once there was a file, keys are asked for until the process
    ends: one that is deleted or emptied locks everybody out and never lets everybody in.
    """

    def __init__(self, path: Path, own: ApiKey | None = None, *, required: bool = False) -> None:
        self._path = path
        self._own = own
        self._seen: tuple[int, ...] | None = None
        self._keys: list[ApiKey] = []
        self.required = required
        self.refresh()

    def refresh(self) -> None:
        """Read the file if it has changed."""
        try:
            stat = self._path.stat()
            seen: tuple[int, ...] | None = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        except (FileNotFoundError, NotADirectoryError):
            seen = None
        except OSError:  # something is there
            seen = ()
        if seen == self._seen:
            return
        self._seen, self._keys, self.required = seen, [], True
        try:
            self._keys, problems = _parse(_text(self._path))
        except KeysFileInvalid as error:
            problems = [str(error)]
        for problem in problems:
            log.error("a line of the keys file is ignored", action="keys_error", problem=problem)
        log.info("keys read", action="keys_read", keys=len(self._keys))

    def tenant_of(self, key: str) -> str | None:
        """Whose key it is; None: nobody's. Takes as long whichever it is."""
        digest, found = digest_of(key), None
        for one in (*self._keys, *([self._own] if self._own else ())):
            if hmac.compare_digest(one.digest, digest):
                found = one.tenant
        return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise KeysFileInvalid(f"cannot read {path}: {error}") from None


def _parse(text: str) -> tuple[list[ApiKey], list[str]]:
    """The keys, and what is wrong with the other lines: never what is in them, which may be a key."""
    keys: list[ApiKey] = []
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        content, _, note = line.partition("#")
        words = content.split()
        if not words:
            continue
        if len(words) != 2 or not tenants.NAME.fullmatch(words[0]) or not DIGEST.fullmatch(words[1].lower()):
            problems.append(f"line {number} is not a tenant's name and a SHA-256 in hex")
        elif taken := taken_name(words[0], keys):
            problems.append(f"line {number}: the name {words[0]} cannot be told from {taken}; choose another")
        else:
            keys.append(ApiKey(words[0], words[1].lower(), note.strip()))
    return keys, problems


def taken_name(tenant: str, keys: Iterable[ApiKey]) -> str | None:
    """Another tenant of these keys whose tag is the same, so that the two could not be told apart."""
    tag = tenants.tag(tenant)
    return next((key.tenant for key in keys if key.tenant != tenant and tenants.tag(key.tenant) == tag), None)
