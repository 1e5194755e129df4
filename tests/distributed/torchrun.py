"""Starting the processes of a distributed test."""

import os
import subprocess
import sys


def torchrun(processes, *command, check=True):
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    line += [f"--nproc-per-node={processes}", "-m", *map(str, command)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(line, capture_output=True, text=True, env=environment, check=check)
