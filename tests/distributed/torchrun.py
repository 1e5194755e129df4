"""Starting the processes of a distributed test."""

import os
import subprocess
import sys


def torchrun(processes, *command, check=True):
    """Start a module with torchrun, as users do."""
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    line += [f"--nproc-per-node={processes}", "-m", *map(str, command)]
    return _run(line, check, {})


def forked_ranks(processes, *command, check=True, environment=None):
    """Start a module or a file as torchrun would, but import torch once for all processes."""
    line = [sys.executable, "-m", "tests.distributed.forked_ranks", str(processes)]
    return _run([*line, *map(str, command)], check, environment or {})


def _run(line, check, environment):
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(
        line, capture_output=True, text=True, env=environment, check=check, timeout=300
    )
