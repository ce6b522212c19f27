"""A short soak (soak.py): its figures of memory say nothing yet, everything else must hold."""

from __future__ import annotations

import os
import subprocess
import sys

import soak
from queue_client import ROOT


def test_every_job_of_a_short_soak_ends_once_and_no_key_is_left() -> None:
    run = subprocess.run(
        [sys.executable, soak.__file__, "--jobs", "200", "--result-ttl", "10"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "jobs acknowledged: 200;" in run.stdout
