"""Two processes against one, with one thread each; also bfloat16 and compilation.

    python measurements/processes.py

About five minutes on two free cores. Each line of the result is a training on the embedded images
with the default recipe for two epochs, started as a user would start it
(`torchrun … -m unibct train`). The images per second come from its metrics.csv, without the first
epoch. The lines take turns. Goal: two processes are at least 1.7 times as fast as one.
"""

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SETTINGS = ["epochs=2", "warmup_epochs=0", "refresh_epochs=[]", "batch_size=256"]
LINES: dict[str, tuple[int, list[str]]] = {
    "one process": (1, []),
    "two processes": (2, []),
    "two, own batch norm": (2, ["sync_batch_norm=false"]),
    "one, bfloat16": (1, ["precision='bfloat16'"]),
    "one, compiled": (1, ["compile=true"]),
}


def main() -> None:
    """Run the lines in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--lines", nargs="*", default=list(LINES), choices=list(LINES))
    options = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in options.lines}
    with tempfile.TemporaryDirectory() as root:
        for number in range(options.rounds):
            for name in options.lines:
                rates[name].append(rate(Path(root) / f"{name} {number}", *LINES[name]))
    plain = statistics.median(rates[options.lines[0]])
    for name, values in rates.items():
        median = statistics.median(values)
        print(f"{name:<22} {median:>8,.0f} images/s {median / plain:>6.2f} ×")


def rate(out: Path, processes: int, settings: list[str]) -> float:
    """Train once and return the images per second, without the first epoch."""
    command = [sys.executable, "-m"]
    if processes > 1:
        command += ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    command += ["unibct", "train", "glyphs:train", "--out", str(out), "--validation", "0"]
    for setting in (*SETTINGS, *settings):
        command += ["--set", setting]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--device", "cpu"], check=True, env=environment, capture_output=True)
    with (out / "metrics.csv").open() as file:
        return statistics.median(
            float(row["images_per_second"]) for row in list(csv.DictReader(file))[1:]
        )


if __name__ == "__main__":
    main()
