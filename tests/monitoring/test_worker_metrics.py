"""What the worker's metric functions add to its registry."""

from __future__ import annotations

import os
import time
import urllib.request

from engine.result import BatchStats
from worker import metrics
from worker.process_metrics import ProcessMetrics, posix_families


def value(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(f"fieldcast_{name}", labels) or 0.0


def test_a_batch_counts_its_jobs_tokens_and_passes() -> None:
    names = [("batch_jobs_sum", {}), ("batch_tokens_sum", {}), ("forward_passes_total", {})]
    names += [("prompt_tokens_total", {"source": s}) for s in ("computed", "cached")]
    before = [value(name, **labels) for name, labels in names]
    metrics.observe_batch(
        BatchStats(requests=3, contexts=1, passes=2, computed_tokens=200, cached_tokens=50, shared_tokens=90)
    )
    assert [value(n, **labels) - b for (n, labels), b in zip(names, before, strict=True)] == [3, 200, 2, 200, 50]
    assert time.time() - value("worker_last_step_timestamp_seconds") < 5


def test_a_finished_job_counts_under_its_preset_and_in_seconds() -> None:
    labels = {"preset": "support_triage", "phase": "total"}
    before = value("job_duration_seconds_sum", **labels), value("field_confidence_count", preset="support_triage")
    timings = {"queue_ms": 5.0, "prefill_ms": None, "total_ms": 250.0}
    metrics.observe_finished("support_triage", "completed", timings, [0.5, 0.9], low_confidence=1)
    assert round(value("job_duration_seconds_sum", **labels) - before[0], 6) == 0.25
    assert value("field_confidence_count", preset="support_triage") - before[1] == 2


def test_a_client_cannot_add_series() -> None:
    before, series = value("jobs_finished_total", preset="custom", status="failed"), count()
    for name in (None, "mine", "../../etc/passwd", "support_triage\n"):
        metrics.observe_finished(name, "failed")
    assert value("jobs_finished_total", preset="custom", status="failed") == before + 4
    assert count() == series


def test_cache_hits_stay_a_counter_when_a_new_engine_starts_at_zero() -> None:
    metrics.set_prefix_cache(0, 0)
    start = value("prefix_cache_hits_total")
    for hits in (2, 5, 5, 1, 3):
        metrics.set_prefix_cache(1000, hits)
    assert value("prefix_cache_hits_total") - start == 5 + 3
    assert value("prefix_cache_bytes") == 1000


def test_build_info_names_one_build() -> None:
    metrics.build_info("0.1.0", "one", "packed")
    metrics.build_info("0.1.0", "two", "broadcast")
    assert value("build_info", version="0.1.0", model="two", strategy="broadcast") == 1
    assert value("build_info", version="0.1.0", model="one", strategy="packed") == 0


def test_memory_has_a_limit_to_measure_headroom_by() -> None:
    metrics.set_memory({"active": 1, "cache": 2, "peak": 3})
    assert value("mlx_memory_bytes", kind="limit") == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    metrics.set_memory({"active": 1, "cache": 2, "peak": 3, "limit": 4})
    assert value("mlx_memory_bytes", kind="limit") == 4


def test_the_metrics_port_serves_the_registry_until_closed() -> None:
    server = metrics.serve(0)
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=5) as answer:
        assert b"fieldcast_worker_up" in answer.read()
    server.close()


def test_the_process_s_own_series_are_the_same_by_both_ways() -> None:
    by_platform = {f.name: f.samples[0].value for f in ProcessMetrics().collect()}
    by_posix = {f.name: f.samples[0].value for f in posix_families()}
    assert set(by_posix) <= set(by_platform)
    assert abs(by_platform["process_cpu_seconds"] - by_posix["process_cpu_seconds"]) < 1
    # By the second way a process starts when it imports its metrics, which is late in a test run.
    assert by_platform["process_start_time_seconds"] - 5 < by_posix["process_start_time_seconds"] <= time.time()


def count() -> int:
    return sum(len(f.samples) for f in metrics.REGISTRY.collect())
