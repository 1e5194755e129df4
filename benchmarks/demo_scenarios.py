"""What the demo gives in every scenario, over several seeds, as a Markdown table.

    python benchmarks/demo_scenarios.py --seeds 0 1 2

Some 7 minutes a seed on two cores; a run that was stopped goes on where it was (models are kept
in runs/scenarios and shared between scenarios that need the same one). The README's table is its
output. Each cell is the mean over the seeds; the range in brackets is the smallest and largest.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

from unibct.demo import plan_demo, run_demo
from unibct.evaluate import Evaluation
from unibct.progress import terminal_progress
from unibct.scenarios import SCENARIOS


def main() -> None:
    """Run the grid and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--method", default="unibct")
    parser.add_argument("--part", default="test", help="val to choose a recipe, test to report")
    parser.add_argument("--out", type=Path, default=Path("runs/scenarios"))
    parser.add_argument("--scenarios", nargs="+", default=list(SCENARIOS))
    arguments = parser.parse_args()
    results: dict[str, list[Evaluation]] = {}
    with terminal_progress() as progress:
        for seed in arguments.seeds:
            for scenario in arguments.scenarios:
                plan = plan_demo(scenario, arguments.method, seed, arguments.part)
                found = run_demo(plan, arguments.out, progress=progress)
                results.setdefault(scenario, []).append(found.evaluation)
    first = next(iter(results.values()))[0]
    metrics = [criterion.metric for criterion in first.criteria]
    heads = [
        "scenario",
        *(f"{metric}: old self → cross" for metric in metrics),
        "new self, free self top-1",
        "verdicts",
    ]
    print("| " + " | ".join(heads) + " |")
    print("|" + " --- |" * len(heads))
    for scenario, evaluations in results.items():
        cells = [scenario]
        for index in range(len(metrics)):
            criteria = [evaluation.criteria[index] for evaluation in evaluations]
            differences = [100 * c.difference for c in criteria]
            verdicts = Counter(c.verdict for c in criteria)
            cells.append(
                f"{np.mean([100 * c.old_self for c in criteria]):.1f} → "
                f"{np.mean([100 * c.cross for c in criteria]):.1f} "
                f"({min(differences):+.1f} to {max(differences):+.1f}; "
                f"{verdicts['compatible']}/{len(criteria)})"
            )
        selves = [
            np.mean([100 * evaluation.tests[name].top(1) for evaluation in evaluations])
            for name in ("new→new", "free→free")
        ]
        cells.append(", ".join(f"{value:.1f}" for value in selves))
        overall = Counter(evaluation.verdict for evaluation in evaluations)
        cells.append(", ".join(f"{count} × {verdict}" for verdict, count in overall.items()))
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
