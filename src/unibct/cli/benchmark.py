"""The command that compares methods: benchmark."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unibct.cli.options import (
    ADAPTER_NAMES,
    METHOD_NAMES,
    SCENARIO_NAMES,
    DeviceOption,
    RecipeOption,
    SetOption,
    SkipOption,
    app,
    names,
    number,
)
from unibct.errors import UserError

if TYPE_CHECKING:
    from unibct.benchmark.run import Benchmark

TrainingData = Annotated[str, typer.Argument(metavar="[DATA]", help="training images")]
TestOption = Annotated[
    str | None,
    typer.Option(
        metavar="DATA",
        help="test images of other classes  [default: glyphs:test, or 30 % of DATA's classes]",
    ),
]
ScenariosOption = Annotated[
    str | None, typer.Option(metavar="A,B", help=f"{SCENARIO_NAMES}  [default: all]")
]
MethodsOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        help=f"{METHOD_NAMES}, {ADAPTER_NAMES}, or paper, all  [default: paper,unibct-plus]",
    ),
]
SeedsOption = Annotated[
    str | None,
    typer.Option(metavar="0,1,2", help="each: a split and weights  [default: 0,1,2]"),
]
ChainOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B|none", help="upgrade chains by these methods  [default: unibct,unibct-plus]"
    ),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option(metavar="CELL", help="run only this: a scenario, a method, or a/b"),
]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="two scenarios, one seed, no chain, by default")
]
OutOption = Annotated[Path, typer.Option(help="folder for all results")]
WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="processes side by side  [default: one per core]")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="say what would run, and for how long")
]
ReportOnlyOption = Annotated[
    bool, typer.Option("--report-only", help="make the report from what is finished")
]


@app.command("benchmark")
def benchmark_command(
    data: TrainingData = "glyphs:train",
    test: TestOption = None,
    scenarios: ScenariosOption = None,
    methods: MethodsOption = None,
    seeds: SeedsOption = None,
    chain: ChainOption = None,
    only: OnlyOption = None,
    quick: QuickOption = False,
    recipe: RecipeOption = "glyphs",
    set_: SetOption = None,
    skip_bad_images: SkipOption = False,
    out: OutOption = Path("runs/benchmark"),
    workers: WorkersOption = None,
    dry_run: DryRunOption = False,
    report_only: ReportOnlyOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Compare every method in every scenario over several seeds.

    Each cell (scenario, method, seed) is a folder; a finished one is never run again, and a
    benchmark that was stopped goes on when the same command is given. Writes report.html,
    report.md and results.csv.

    Examples: unibct benchmark --dry-run

    unibct benchmark photos/ --recipe my.toml --methods unibct,unibct-plus --seeds 0,1,2,3,4
    """
    from unibct.benchmark.plan import make_grid
    from unibct.benchmark.run import plan_benchmark
    from unibct.progress import terminal_progress
    from unibct.report.terminal import print_plan
    from unibct.training.recipe import load_recipe

    grid = make_grid(
        data,
        test=test,
        recipe=load_recipe(recipe, set_ or ()),
        quick=quick,
        scenarios=names(scenarios),
        methods=names(methods),
        seeds=[number(seed, "--seeds") for seed in names(seeds)],
        chain=None if chain is None else [name for name in names(chain) if name != "none"],
        skip_bad=skip_bad_images,
    )
    options: dict[str, Any] = {"only": only or (), "workers": workers, "device": device}
    with terminal_progress() as progress:
        benchmark = plan_benchmark(
            grid, out, read_images=not report_only, progress=progress, **options
        )
    if dry_run:
        print_plan(benchmark)
    else:
        _run_and_report(benchmark, out, report_only=report_only)


def _run_and_report(benchmark: "Benchmark", out: Path, *, report_only: bool) -> None:
    """Run what is left, unless the report alone is wanted, and write the report."""
    from unibct.benchmark.run import JobsFailedError, run_benchmark
    from unibct.report.live import watched
    from unibct.report.pages.benchmark import write_benchmark_report
    from unibct.report.terminal import print_benchmark

    if report_only:
        results = benchmark.results()
    else:
        try:
            with watched(benchmark) as changed:
                results = run_benchmark(benchmark, changed)
        except JobsFailedError:
            with suppress(UserError):  # nothing is finished yet
                write_benchmark_report(benchmark.results(), benchmark, out)
            raise
    write_benchmark_report(results, benchmark, out)
    print_benchmark(results)
    print(f"report: {out / 'report.html'}, {out / 'report.md'}, {out / 'results.csv'}")
