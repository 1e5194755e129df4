"""How much memory this process uses, for the measurements."""

from pathlib import Path


def memory(field: str) -> float:
    """Return the gigabytes in a line of the process's status, such as ``VmRSS``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1e6
    raise ValueError(field)
