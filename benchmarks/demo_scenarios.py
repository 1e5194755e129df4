"""What the demo gives in every scenario, over several seeds, as a Markdown table.

    python benchmarks/demo_scenarios.py --seeds 0 1 2

Some 7 minutes a seed on two cores; a run that was stopped goes on where it was (models are kept
in runs/scenarios and shared between scenarios that need the same one). The README's table is its
output. Means over the seeds; in brackets how many runs are compatible in that metric, and the
smallest and largest difference between cross and old self test.
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
    parser.add_argument("--set", action="append", default=[], help="key=value of the recipe")
    arguments = parser.parse_args()
    results: dict[str, list[Evaluation]] = {}
    with terminal_progress() as progress:
        for seed in arguments.seeds:
            for scenario in arguments.scenarios:
                plan = plan_demo(
                    scenario,
                    arguments.method,
                    seed,
                    part=arguments.part,
                    overrides=arguments.set,
                )
                found = run_demo(plan, arguments.out, progress=progress)
                results.setdefault(scenario, []).append(found.evaluation)
    print_table(results)


def print_table(results: dict[str, list[Evaluation]]) -> None:
    """A row per scenario: the criterion per metric, and the self tests of new and free model."""
    metrics = [criterion.metric for criterion in next(iter(results.values()))[0].criteria]
    heads = [f"{metric}: old→old, new→old" for metric in metrics]
    heads += [f"{metric}: new→new, free→free" for metric in metrics[:2]]
    print("| scenario | " + " | ".join(heads) + " |")
    print("|" + " --- |" * (len(heads) + 1))
    for scenario, evaluations in results.items():
        cells: list[str] = []
        for index in range(len(metrics)):
            criteria = [evaluation.criteria[index] for evaluation in evaluations]
            pair = (np.mean([c.old_self for c in criteria]), np.mean([c.cross for c in criteria]))
            compatible = Counter(c.verdict for c in criteria)["compatible"]
            differences = [100 * c.difference for c in criteria]
            cells.append(
                f"{100 * pair[0]:.1f}, {100 * pair[1]:.1f} ({compatible}/{len(criteria)}; "
                f"{min(differences):+.1f} to {max(differences):+.1f})"
            )
        for metric in metrics[:2]:
            pair = [
                np.mean([evaluation.metrics(test)[metric] for evaluation in evaluations])
                for test in ("new→new", "free→free")
            ]
            cells.append(f"{100 * pair[0]:.1f}, {100 * pair[1]:.1f}")
        print(f"| {scenario} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
