"""Metrics of this process, under the names that Prometheus' client libraries use."""

from __future__ import annotations

import platform
import resource
from importlib.metadata import version

import psutil

from fovea_server.statistics.family import Family, gauge


class Process:
    """Reads the resources of the process, and the build."""

    def __init__(self) -> None:
        # psutil, because prometheus-client's collector reports nothing on macOS.
        self._process = psutil.Process()
        self._build = Family("fovea_build_info", "gauge", "Version of Fovea and what it runs on")
        self._build.add(
            {
                "version": version("fovea-serve"),
                "python": platform.python_version(),
                "system": platform.system(),
                "machine": platform.machine(),
            },
            1,
        )

    def families(self) -> list[Family]:
        """Build the families of memory, files, times and the build."""
        process = self._process
        with process.oneshot():
            memory, times = process.memory_info(), process.cpu_times()
            started, files = process.create_time(), process.num_fds()
        cpu = Family(
            "process_cpu_seconds_total", "counter", "User and system CPU time spent in seconds"
        )
        cpu.add({}, times.user + times.system)
        return [
            self._build,
            cpu,
            gauge("process_resident_memory_bytes", "Resident memory size in bytes", memory.rss),
            gauge("process_virtual_memory_bytes", "Virtual memory size in bytes", memory.vms),
            gauge("process_open_fds", "Number of open file descriptors", files),
            gauge(
                "process_max_fds",
                "Maximum number of open file descriptors",
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            ),
            gauge(
                "process_start_time_seconds", "Start time since the Unix epoch in seconds", started
            ),
        ]
