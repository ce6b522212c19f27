"""The process's own `process_*` series: prometheus_client's on Linux; macOS has no /proc, so system calls there."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_STARTED_AT = time.time()  # this module is imported within the first second of a process
_PROC_PIDTASKINFO = 4  # <sys/proc_info.h>


class _TaskInfo(ctypes.Structure):
    """`struct proc_taskinfo`, of which only the first two members are read."""

    _fields_ = (
        ("virtual_bytes", ctypes.c_uint64),
        ("resident_bytes", ctypes.c_uint64),
        ("rest", ctypes.c_uint8 * 80),
    )


class ProcessMetrics(Collector):
    """`process_cpu_seconds_total`, `process_start_time_seconds`, `process_resident_memory_bytes`; more on Linux."""

    def __init__(self) -> None:
        self._linux = ProcessCollector(registry=None) if sys.platform == "linux" else None

    def collect(self) -> Iterable[Metric]:
        return self._linux.collect() if self._linux is not None else posix_families()


def posix_families() -> Iterator[Metric]:
    """The three series that any Unix can tell; resident memory on macOS only."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_seconds = CounterMetricFamily("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.")
    cpu_seconds.add_metric([], used.ru_utime + used.ru_stime)
    yield cpu_seconds
    start = "Start time of the process since unix epoch in seconds."
    yield GaugeMetricFamily("process_start_time_seconds", start, value=_STARTED_AT)
    resident_bytes = _resident_bytes()
    if resident_bytes is not None:
        memory = "Resident memory size in bytes."
        yield GaugeMetricFamily("process_resident_memory_bytes", memory, value=resident_bytes)


def _resident_bytes() -> int | None:
    if sys.platform != "darwin":
        return None
    info = _TaskInfo()
    size = ctypes.sizeof(info)
    filled = ctypes.CDLL(None).proc_pidinfo(
        os.getpid(), _PROC_PIDTASKINFO, ctypes.c_uint64(0), ctypes.byref(info), size
    )
    return int(info.resident_bytes) if filled == size else None
