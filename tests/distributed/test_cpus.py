import os

import pytest

from unibct.distributed import cpus
from unibct.distributed.cpus import usable_cpus


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with 64 cores and no limits, whose files are in a temporary folder."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    monkeypatch.setattr(cpus, "_PROCESS_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cpus, "_GROUPS_ROOT", tmp_path / "fs")
    return tmp_path


def limit(machine, path, text):
    (machine / "fs" / path).parent.mkdir(parents=True, exist_ok=True)
    (machine / "fs" / path).write_text(text)


def test_without_limits_all_cores_are_usable(machine):
    assert usable_cpus() == 64
    (machine / "cgroup").write_text("0::/user.slice\n")
    assert usable_cpus() == 64
    limit(machine, "user.slice/cpu.max", "max 100000\n")
    assert usable_cpus() == 64


def test_a_system_without_affinity(machine, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert usable_cpus() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cpus() == 1


def test_affinity_counts(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assert usable_cpus() == 2


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1), ("many", 64)],
)
def test_the_quota_of_the_group_counts_unless_it_cannot_be_understood(machine, quota, expected):
    (machine / "cgroup").write_text("nonsense\n0::/\n")
    limit(machine, "cpu.max", f"{quota}\n")
    assert usable_cpus() == expected


def test_the_smallest_quota_of_all_groups_above_counts(machine):
    (machine / "cgroup").write_text("0::/jobs/42\n")
    limit(machine, "jobs/42/cpu.max", "max 100000\n")
    limit(machine, "jobs/cpu.max", "300000 100000\n")
    limit(machine, "cpu.max", "800000 100000\n")
    assert usable_cpus() == 3


def test_the_older_kind_of_groups(machine):
    (machine / "cgroup").write_text("11:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n")
    limit(machine, "cpu/docker/1/cpu.cfs_quota_us", "400000\n")
    limit(machine, "cpu/docker/1/cpu.cfs_period_us", "100000\n")
    limit(machine, "cpu/cpu.cfs_quota_us", "-1\n")
    limit(machine, "cpu/cpu.cfs_period_us", "100000\n")
    assert usable_cpus() == 4
