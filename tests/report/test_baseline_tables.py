from types import SimpleNamespace

import numpy as np

from unibct.benchmark.results import Measured
from unibct.report.baseline_tables import baseline_tables


def made_up_results(*methods, metrics=("TAR@1e-2", "top-1")):
    """Two seeds in one scenario; every method and metric has its own values and samples."""

    def measured(test):
        def of(scenario, method, metric):
            kinds = ("cross", "self")
            seed = [kinds.index(test), methods.index(method), metrics.index(metric)]
            generator = np.random.default_rng(seed)
            return Measured(generator.random(2), generator.random((2, 50)), 50)

        return of

    return SimpleNamespace(
        grid=SimpleNamespace(methods=methods),
        scenarios=["open-class"],
        deciding_metrics=list(metrics),
        has_cell=lambda scenario, method: True,
        cross=measured("cross"),
        new_self=measured("self"),
    )


def rows_by_title(results):
    return {table.title: [row[0].text for row in table.rows] for table in baseline_tables(results)}


def test_every_method_is_compared_with_the_default_method_in_both_tests():
    results = made_up_results("none", "regress", "unibct", "unibct-plus", "procrustes")
    assert rows_by_title(results) == {
        "Against unibct, top-1": ["regress", "unibct-plus", "procrustes"],
        "Against unibct, TAR@1e-2": ["regress", "unibct-plus", "procrustes"],
        "Against unibct, self test, top-1": ["regress", "unibct-plus"],
        "Against unibct-plus, top-1": ["regress", "unibct", "procrustes"],
        "Against unibct-plus, TAR@1e-2": ["regress", "unibct", "procrustes"],
        "Against unibct-plus, self test, top-1": ["regress", "unibct"],
    }
    tables = {table.title: table for table in baseline_tables(results)}
    for title, test, metric in [
        ("Against unibct-plus, TAR@1e-2", results.cross, "TAR@1e-2"),
        ("Against unibct-plus, self test, top-1", results.new_self, "top-1"),
    ]:
        regress, plus = (test("open-class", name, metric) for name in ("regress", "unibct-plus"))
        difference = 100 * np.mean([regress.values[seed] - plus.values[seed] for seed in (0, 1)])
        samples = regress.samples - plus.samples
        paired = Measured(regress.values - plus.values, samples, 50).estimate
        cell = tables[title].rows[0][1]
        assert cell.text == f"{difference:+.2f}"
        assert cell.small == f"{100 * paired.low:+.2f} to {100 * paired.high:+.2f}"


def test_a_pair_of_methods_is_not_compared_twice():
    assert rows_by_title(made_up_results("none", "unibct", "unibct-plus")) == {
        "Against unibct, top-1": ["unibct-plus"],
        "Against unibct, TAR@1e-2": ["unibct-plus"],
        "Against unibct, self test, top-1": ["unibct-plus"],
    }
    # Of the self test, the pair is all that there is: a map leaves the free model as it is.
    assert rows_by_title(made_up_results("unibct", "unibct-plus", "affine")) == {
        "Against unibct, top-1": ["unibct-plus", "affine"],
        "Against unibct, TAR@1e-2": ["unibct-plus", "affine"],
        "Against unibct, self test, top-1": ["unibct-plus"],
        "Against unibct-plus, top-1": ["unibct", "affine"],
        "Against unibct-plus, TAR@1e-2": ["unibct", "affine"],
    }
    assert rows_by_title(made_up_results("none", "unibct-plus")) == {}
