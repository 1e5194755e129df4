"""The command that compares methods: benchmark."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from unibct.benchmark import CHAIN_METHODS, DEFAULT_METHODS
from unibct.cli.options import (
    DeviceOption,
    RecipeOption,
    SetOption,
    SkipOption,
    app,
    argument,
    examples,
    flag,
    option,
    parse_number,
    split_names,
)
from unibct.data.scenarios import SCENARIOS
from unibct.errors import UserError
from unibct.maps import MAPS
from unibct.methods import METHODS, split_methods

if TYPE_CHECKING:
    from unibct.benchmark.run import Benchmark
    from unibct.training.recipe import Recipe


@app.command(
    "benchmark",
    epilog=examples(
        "unibct benchmark --dry-run",
        "unibct benchmark --quick",
        "unibct benchmark photos/ --methods unibct,unibct-plus --seeds 0,1,2,3,4",
        "unibct benchmark --only open-class/unibct",
        "unibct benchmark --validation glyphs:val",
        "unibct benchmark --test glyphs:final --out runs/final",
    ),
)
def benchmark_command(
    data: str = argument("the training images", "DATA", default="glyphs:train"),
    test: str | None = option(
        "test images of other classes  [default: glyphs:test for the embedded images, else "
        "30 % of DATA's classes are held out]",
        "DATA",
    ),
    validation: str | None = option(
        "images of further classes, on which each cell chooses how it blends queries and "
        "merges scores  [default: the midpoint, and raw scores]",
        "DATA",
    ),
    scenarios: str | None = option(f"{', '.join(SCENARIOS)}  [default: all]", "A,B"),
    methods: str | None = option(
        f"{', '.join([*METHODS, *MAPS])}, or a variant such as unibct@warmup_epochs=0  "
        f"[default: {','.join(DEFAULT_METHODS)}]",
        "A,B",
    ),
    seeds: str | None = option(
        "each seed chooses a split and initial weights  [default: 0,1,2]", "0,1,2"
    ),
    chain: str | None = option(
        f"train upgrade chains, v1 to v3, with these methods  [default: {','.join(CHAIN_METHODS)}]",
        "A,B|none",
    ),
    only: list[str] | None = option(
        "run only a part: a scenario, a method, SCENARIO/METHOD, or chains; may be repeated", "CELL"
    ),
    quick: bool = flag("--quick", "smaller defaults: two scenarios, one seed, no upgrade chain"),
    recipe: RecipeOption = None,
    set_: SetOption = None,
    skip_bad_images: SkipOption = False,
    out: Path = option("folder for the results and the report", default=Path("runs/benchmark")),
    workers: int | None = option("jobs to run at the same time  [default: one per core]", min=1),
    dry_run: bool = flag(
        "--dry-run", "print what would run, and how long at the finished jobs' rate"
    ),
    report_only: bool = flag(
        "--report-only", "write the report from the finished jobs, and run nothing"
    ),
    device: DeviceOption = "auto",
) -> None:
    """Compare methods in several scenarios over several seeds.

    Each combination of scenario, method and seed is a job with its own folder. A finished job
    never runs again: if the benchmark is stopped, run the same command to continue. Writes
    report.html, report.md and results.csv.
    """
    from unibct.benchmark.grid import make_grid
    from unibct.benchmark.run import plan_benchmark
    from unibct.progress import terminal_progress
    from unibct.report.terminal import print_plan

    if report_only and only:
        raise UserError("--only says what to run, but --report-only runs nothing: leave one out")
    grid = make_grid(
        data,
        test=test,
        recipe=_load_recipe(recipe, set_ or (), data),
        quick=quick,
        scenarios=split_names(scenarios),
        methods=split_methods(methods or ""),
        seeds=[parse_number(seed, "--seeds") for seed in split_names(seeds)],
        chain=None if chain is None else [name for name in split_methods(chain) if name != "none"],
        skip_bad=skip_bad_images,
        validation=validation,
    )
    with terminal_progress():
        benchmark = plan_benchmark(
            grid,
            out,
            only=only or (),
            workers=workers,
            device=device,
            read_images=not report_only,
        )
    if dry_run:
        return print_plan(benchmark)
    return _run_and_report(benchmark, out, report_only=report_only)


def _load_recipe(name: str | None, overrides: Sequence[str], data: str) -> "Recipe":
    """Load the recipe that the user names, or the one that fits the images."""
    from unibct.data.readers import open_images
    from unibct.progress import terminal_progress
    from unibct.training.default_recipe import recipe_for
    from unibct.training.recipe import load_recipe

    if name is not None:
        return load_recipe(name, overrides)
    with terminal_progress():
        return recipe_for(open_images(data), overrides)


def _run_and_report(benchmark: "Benchmark", out: Path, *, report_only: bool) -> None:
    """Run the unfinished jobs, unless only the report is wanted, and write the report."""
    from unibct.benchmark.run import JobsFailedError, run_benchmark
    from unibct.report.live import live_progress
    from unibct.report.pages import write_benchmark_report
    from unibct.report.terminal import print_benchmark

    if report_only:
        results = benchmark.results()
    else:
        try:
            with live_progress(benchmark) as on_change:
                results = run_benchmark(benchmark, on_change)
        except JobsFailedError:
            with suppress(UserError):  # nothing is finished yet
                write_benchmark_report(benchmark.results(), benchmark, out)
            raise
    write_benchmark_report(results, benchmark, out)
    print_benchmark(results)
    print(f"report: {out / 'report.html'}, {out / 'report.md'}, {out / 'results.csv'}")
