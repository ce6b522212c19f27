"""`fieldcast keys`: makes, lists and revokes API keys. The running API notices by itself."""

from __future__ import annotations

import os
import secrets
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from api.keys import KeysFileInvalid, digest_of, read_keys, taken_name
from deploy import show
from engine.errors import FieldcastError
from worker import tenants
from worker.settings import Settings

KEY_BYTES = 32
ID_DIGITS = 12  # of a key's hash, by which people name it


class BadName(FieldcastError):
    """The tenant's name cannot be used, or no key is called so."""

    type = "bad_name"


def new_key() -> str:
    """A random key, recognisable as one of Fieldcast's."""
    return f"fc_{secrets.token_urlsafe(KEY_BYTES)}"


def new(tenant: str, settings: Settings, *, as_json: bool) -> None:
    """Prints a new key, once, and adds its hash to the file. Raises BadName, KeysFileInvalid."""
    path = settings.keys_path
    if not tenants.NAME.fullmatch(tenant):
        raise BadName(f"a tenant's name has 1 to 64 letters, digits, dots, dashes and underscores, not {tenant!r}")
    if taken := taken_name(tenant, read_keys(path)):
        raise BadName(f"the name {tenant} cannot be told from {taken}; choose another")
    key = new_key()
    digest = digest_of(key)
    _append(path, f"{tenant} {digest}  # made {datetime.now(UTC):%Y-%m-%d}\n")
    if as_json:
        show.print_json({"tenant": tenant, "id": digest[:ID_DIGITS], "key": key})
        return
    show.say(f"a key for {tenant}, shown this once; its hash is in {path}")
    show.out.print(key, markup=False, soft_wrap=True)


def list_keys(settings: Settings, *, as_json: bool) -> None:
    """Prints whose keys there are. Raises KeysFileInvalid."""
    keys = read_keys(settings.keys_path)
    if as_json:
        show.print_json([{**asdict(key), "id": key.digest[:ID_DIGITS]} for key in keys])
        return
    table = Table()
    for column in ("tenant", "key", "note"):
        table.add_column(column, overflow="fold")
    for key in keys:
        table.add_row(escape(key.tenant), key.digest[:ID_DIGITS], escape(key.note))
    show.out.print(table)


def revoke(name: str, settings: Settings) -> None:
    """Removes a tenant's keys, or the one with that id. Raises BadName, KeysFileInvalid."""
    path = settings.keys_path
    keys = read_keys(path)
    gone = {key.digest for key in keys if key.tenant == name} or {
        key.digest for key in keys if key.digest[:ID_DIGITS] == name
    }
    if not gone:
        raise BadName(f"there is no tenant and no key {name} in {path}; see `fieldcast keys`")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    _replace(path, "".join(line for line in lines if not any(word.lower() in gone for word in line.split())))
    show.say(f"{len(gone)} revoked: the running API has no use for them any more")


def _append(path: Path, line: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes() if path.exists() else b""
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(fd, "ab") as file:
            file.write((b"" if before.endswith(b"\n") or not before else b"\n") + line.encode())
    except OSError as error:
        raise KeysFileInvalid(f"cannot write {path}: {error.strerror}") from None


def _replace(path: Path, text: str) -> None:
    """At once: the API never reads half of it. The new file is the user's alone (0600)."""
    try:
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except OSError as error:
        raise KeysFileInvalid(f"cannot write {path}: {error.strerror}") from None
