"""The CPUs that this process may use. They can be far fewer than those of the machine."""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_PROCESS_GROUPS = Path("/proc/self/cgroup")
_GROUPS_ROOT = Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """Return how many CPUs this process may use, at least 1.

    Schedulers and containers restrict a process in two ways: they bind it to some of the cores
    (its affinity), or give its control group (cgroup) a quota of their time.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min([cores, *(math.ceil(quota) for quota in _quotas())]))


def _quotas() -> Iterator[float]:
    """Yield the quotas of this process's control group and of those above it, in CPUs."""
    try:
        lines = _PROCESS_GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        number, controllers, group = [*line.split(":", 2), "", ""][:3]
        path = PurePosixPath(group.lstrip("/"))
        for part in (path, *path.parents):
            if number == "0" and not controllers:  # version 2: one tree for all controllers
                yield from _quota(_GROUPS_ROOT / part / "cpu.max")
            elif "cpu" in controllers.split(","):  # version 1: a tree for each controller
                folder = _GROUPS_ROOT / "cpu" / part
                yield from _quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")


def _quota(*paths: Path) -> Iterator[float]:
    """Yield quota / period, which the files hold in this order; nothing if there is no quota."""
    try:
        words = [word for path in paths for word in path.read_text(encoding="ascii").split()]
        quota, period = map(int, words)
    except (OSError, ValueError):  # there is no such file, or it says "max"
        return
    if quota > 0 and period > 0:
        yield quota / period
