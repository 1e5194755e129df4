"""Results of a benchmark that was never run, with values from a function."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from unibct.benchmark.results import Measured, Results
from unibct.evaluation.search_test import OLD_SELF


@dataclass(frozen=True)
class MadeUp(Results):
    """Results with ``of(test, method, metric)`` in each scenario, and the cells that are wanted."""

    of: Callable[[str, str, str], Measured] = None  # pyright: ignore
    wanted: Callable[[str, str], bool] = lambda scenario, method: True

    def has_cell(self, scenario: str, method: str) -> bool:
        return self.wanted(scenario, method)

    def in_cell(self, scenario: str, method: str, test: str, metric: str) -> Measured:
        return self.of(test, method, metric)

    def old_self(self, scenario: str, metric: str) -> Measured:
        return self.of(OLD_SELF, "", metric)


def made_up(methods: tuple[str, ...], metrics: tuple[str, ...], of: Any, **changes: Any) -> MadeUp:
    scenarios = changes.pop("scenarios", ("open-class",))
    grid: Any = SimpleNamespace(methods=methods, scenarios=scenarios, seeds=(0, 1))
    results = MadeUp(grid, Path(), {}, {}, of=of, **changes)
    vars(results)["metrics"] = vars(results)["deciding_metrics"] = list(metrics)
    return results
