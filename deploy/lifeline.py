"""Ends a part when its supervisor dies, even by kill -9: the part reads a pipe that only the supervisor can write.

(Linux could signal it through prctl; macOS has no such thing, a pipe works on both.)
"""

from __future__ import annotations

import os
import signal
import threading
import time

VARIABLE = "FIELDCAST_LIFELINE_FD"
LAST_RESORT_S = 90.0  # longer than any part drains


class Lifeline:
    """The supervisor's end. Children get `fd`; when this process ends, the kernel closes the pipe."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()

    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self.fd)}

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._write_fd)


def hold() -> None:
    """In a part: drain as on SIGTERM once the supervisor is gone. Does nothing in a part that was started by hand."""
    fd = os.environ.pop(VARIABLE, None)
    if fd is not None:
        threading.Thread(target=_watch, args=(int(fd),), name="lifeline", daemon=True).start()


def _watch(fd: int) -> None:
    os.read(fd, 1)  # nothing is ever written: this returns when the pipe is closed
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LAST_RESORT_S)
    os._exit(1)
