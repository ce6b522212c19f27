"""Which processes there are, for tests that ask whether one was left behind. /proc on Linux, `ps` elsewhere."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class Process:
    pid: int
    command: str


def is_alive(pid: int) -> bool:
    """A zombie that nobody has waited for yet counts as gone."""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def mentioning(text: str) -> list[Process]:
    """The processes of this user that have `text` in their command or environment."""
    return [Process(pid, command) for pid, command, environment in _all() if text in command or text in environment]


def eventually(condition: Callable[[], object], timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _all() -> list[tuple[int, str, str]]:
    found = []
    if sys.platform == "linux":
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environment = (folder / "environ").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if command:  # a zombie has none
                found.append((int(folder.name), command.strip(), environment))
        return found
    lines = subprocess.run(["ps", "axeww", "-o", "pid=,command="], capture_output=True, text=True, check=True).stdout
    for line in lines.splitlines():
        pid, _, command = line.strip().partition(" ")
        found.append((int(pid), command, ""))
    return found
