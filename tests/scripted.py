"""An answerer that does what the document tells it, and a worker process around it. No model: the queue is tested.

The first word of a context is the deed: `raise`, `die`, `hang` (a native call that no signal ends), `sleep SECONDS`,
`hold FILE` (until the file exists); anything else is answered at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rq.registry import FinishedJobRegistry

from engine.result import BatchStats
from worker.batch_worker import BatchWorker
from worker.claim import Claims
from worker.executions import Executions
from worker.main import connect
from worker.runner import Answer, Question
from worker.settings import Settings

CONFIDENCE = 0.9
POLL_S = 0.01


class Scripted:
    """Answers a batch by doing its deeds in order; notes every call's contexts, in a file too when it has one."""

    def __init__(self, calls_path: Path | None = None) -> None:
        self.calls: list[list[str]] = []
        self.resets = 0
        self._calls_path = calls_path

    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        contexts = [question.context for question in questions]
        self.calls.append(contexts)
        if self._calls_path is not None:
            with self._calls_path.open("a") as file:
                file.write(json.dumps(contexts) + "\n")
        self.prefill(contexts)
        self.score(contexts)
        stats = BatchStats(len(contexts), len(set(contexts)), 1, computed_tokens=10, cached_tokens=0, shared_tokens=0)
        return [Answer(_result(context), None, stats, prefill_ms=1.0, eval_ms=1.0) for context in contexts]

    def prefill(self, contexts: Sequence[str]) -> None:
        """Where an engine reads the documents. There is nothing to read here."""

    def score(self, contexts: Sequence[str]) -> None:
        """Where an engine's pass is."""
        for context in contexts:
            _do(*context.split(maxsplit=2))

    def reset(self) -> None:
        self.resets += 1


def _do(deed: str = "", argument: str = "", _rest: str = "") -> None:
    if deed == "raise":
        raise RuntimeError(f"about {argument}")
    if deed == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "hang":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        time.sleep(3600)
    if deed == "sleep":
        time.sleep(float(argument))
    if deed == "hold":
        while not Path(argument).exists():
            time.sleep(POLL_S)


def _result(context: str) -> dict[str, Any]:
    parsed = {"urgent": {"value": True, "prob": CONFIDENCE}}
    return {"json": {"urgent": True}, "parsed_json": parsed, "length": len(context)}


# Where a worker may be killed: the class and method, and whether before or after its call.
POINTS: dict[str, tuple[type, str, bool]] = {
    "claimed": (BatchWorker, "execute_job", True),
    "started": (Executions, "start", False),
    "mid-prefill": (Scripted, "prefill", False),
    "mid-pass": (Scripted, "score", False),
    "before commit": (Executions, "finish", True),
    "after commit, before its answer is read": (Executions, "finish", False),
    "during maintenance": (FinishedJobRegistry, "cleanup", True),
    "boot recovery begins": (Executions, "recover", True),
    "boot recovery gave claims back": (Claims, "give_back", False),
    "boot recovery is done": (Executions, "recover", False),
}


def die_when(point: str) -> None:
    """Has this process killed at that point."""
    owner, name, before = POINTS[point]
    real = getattr(owner, name)

    def killed(*args: Any, **kwargs: Any) -> None:
        if not before:
            real(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, killed)


if __name__ == "__main__":
    settings = Settings()
    if sys.argv[1]:
        die_when(sys.argv[1])
    answerer = Scripted(Path(sys.argv[2]))
    worker = BatchWorker(connect(settings), settings, answerer, settings.worker_slot, {"model": "scripted"})
    worker.work(logging_level="WARNING")
