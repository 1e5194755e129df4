"""Run a module in several processes that share one import of torch: `forked_ranks N MODULE …`.

`torchrun` starts a Python for itself and one for each process, and each imports torch, which takes
two seconds. Here the processes are forked after the import, with the environment that `torchrun`
would give them. When one fails the others are stopped, as `torchrun` does. `1,2,3` in place of N
starts one process, then two, then three.
"""

import gc
import importlib
import os
import runpy
import signal
import socket
import sys


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def run_rank(rank: int, module: str, arguments: list[str]) -> None:
    """Be one process: run a module, or a file whose name ends with .py."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    sys.argv = [module, *arguments]
    if module.endswith(".py"):
        runpy.run_path(module, run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def run_world(processes: int, module: str, arguments: list[str]) -> int:
    """Start the processes, wait for them, and return 1 if one has failed."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    os.environ |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    running: set[int] = set()
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            run_rank(rank, module, arguments)
            sys.exit(0)
        running.add(child)
    failed = 0
    while running:
        child, status = os.wait()
        running.discard(child)
        if status and not failed:
            failed = 1
            for other in running:
                os.kill(other, signal.SIGTERM)
    return failed


def main() -> int:
    worlds, module, *arguments = sys.argv[1:]
    if not module.endswith(".py"):
        importlib.import_module(module)  # what it imports is there for all
        sys.modules.pop(module)
    gc.freeze()  # what was imported is never garbage
    return int(any(run_world(int(n), module, arguments) for n in worlds.split(",")))


if __name__ == "__main__":
    sys.exit(main())
