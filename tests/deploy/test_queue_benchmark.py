"""The queue's benchmark: its counts are exact, so they are asserted; its times are not."""

from __future__ import annotations

import subprocess
import sys


def test_a_batch_costs_a_fraction_of_the_round_trips_of_rq_s_own_worker() -> None:
    command = [sys.executable, "-m", "deploy.queue_benchmark", "--jobs", "64"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in printed.splitlines() if line[:12].strip().isdigit()]
    ours = {int(batch): float(trips) for batch, trips, *_ in rows}
    assert list(ours) == [1, 8, 20, 32]
    assert ours[20] <= 0.5
    for _, trips, stock, *_ in rows:
        assert 0 < float(trips) < float(stock)


def test_too_few_jobs_are_refused() -> None:
    command = [sys.executable, "-m", "deploy.queue_benchmark", "--jobs", "3"]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert (refused.returncode, "at least 32" in refused.stderr) == (2, True)
