"""Starting the processes of a distributed test."""

import os
import subprocess
import sys

from tests.forked_commands import run_forked


def torchrun(processes, *command, check=True):
    """Start a module with torchrun, as users do."""
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    line += [f"--nproc-per-node={processes}", "-m", *map(str, command)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        line, capture_output=True, text=True, env=environment, check=check, timeout=300
    )


def forked_ranks(processes, *command, check=True, environment=None):
    """Start a module or a file as torchrun would, but import torch once for all processes."""
    line = ["tests.distributed.forked_ranks", processes, *command]
    return run_forked(*line, check=check, environment=environment)
