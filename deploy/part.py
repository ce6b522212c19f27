"""`Part`: one child process of the local stack, started again when it dies. Knows nothing of what the part does."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIRST_DELAY_S = 0.5
MAX_DELAY_S = 30.0
STEADY_S = 60.0  # a part that lived this long starts over with the first delay
HURRIED_DRAIN_S = 2.0
LOG_LIMIT_BYTES = 10_000_000  # a larger log is set aside at the next start
LOG_LINES_SHOWN = 15


def fieldcast_command(*arguments: str) -> list[str]:
    """This same `fieldcast`, whatever folder the user is in (-P: a `deploy` folder there is not ours)."""
    return [sys.executable, "-P", "-m", "deploy.cli", *arguments]


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{path}" if path else str(ROOT), **extra}


class Part:
    """`fieldcast NAME ...` as a child in a session of its own, its output in a log file.

    `failures` counts the times it died and had not been steady in between; `pid` is None while it is down.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_path: Path,
        fds: Sequence[int],
        drain_s: float,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self.failures = 0
        self._arguments, self._environment, self._fds, self._drain_s = arguments, environment, fds, drain_s
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def keep_running(self, died: Callable[[Part, int, float], None]) -> None:
        """Until `stop`. `died` is told the exit code (negative: the signal) and the seconds until the next start."""
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            if time.monotonic() - started > STEADY_S:
                self.failures = 0
            self.failures += 1
            delay_s = min(MAX_DELAY_S, FIRST_DELAY_S * 2 ** (self.failures - 1))
            died(self, code, delay_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)

    async def stop(self, hurry: asyncio.Event) -> None:
        """SIGTERM, then wait for the drain; SIGKILL when it takes too long, or soon after `hurry` is set."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        ended = asyncio.create_task(process.wait())
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait([ended, hurried], timeout=self._drain_s, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not ended.done() and hurry.is_set():
            await asyncio.wait([ended], timeout=HURRIED_DRAIN_S)
        if not ended.done():
            # The whole session: a part's own children must not outlive it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await ended

    def log_tail(self) -> str:
        """The last lines that the latest run of the part wrote."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES_SHOWN:])

    async def _run_once(self) -> int:
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_LIMIT_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *fieldcast_command(*self._arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=child_environment(self._environment),
                pass_fds=self._fds,
                # Ctrl-C goes to a terminal's whole process group; the supervisor alone decides the order of the drain.
                start_new_session=True,
            )
        if self._stopping.is_set():  # stop() came while the process was being made, and did not see it
            with suppress(ProcessLookupError):
                self._process.terminate()
        return await self._process.wait()
