"""Commands that measure: evaluate, demo, rehearse, benchmark."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from unibct.cli.options import (
    ADAPTER_NAMES,
    METHOD_NAMES,
    SCENARIO_NAMES,
    DataArgument,
    DeviceOption,
    ImagesOption,
    RecipeOption,
    SetOption,
    SkipOption,
    app,
    names,
    number,
)
from unibct.errors import UserError
from unibct.methods.table import DEFAULT_METHOD


@app.command("evaluate")
def evaluate_command(
    data: DataArgument,
    query: Annotated[
        Path, typer.Option(metavar="NEW", help="the new model's folder, or its embeddings'")
    ],
    gallery: Annotated[
        Path, typer.Option(metavar="OLD", help="the old model's folder, or its embeddings'")
    ],
    images: ImagesOption = None,
    protocol: Annotated[
        str, typer.Option(help="auto, images, pairs (a .bin file), ijbc, ijbb (a folder with meta)")
    ] = "auto",
    far: Annotated[float, typer.Option(help="false accept rate of the headline TAR")] = 1e-4,
    seed: Annotated[
        int, typer.Option(min=0, help="chooses template images and bootstrap samples")
    ] = 0,
    flip_test: Annotated[bool, typer.Option(help="IJB: add the mirrored image's embedding")] = True,
    detector_scores: Annotated[
        bool, typer.Option(help="IJB: weight images by the detector's score")
    ] = True,
    media_mean: Annotated[
        bool, typer.Option(help="IJB: average a media's images before summing")
    ] = True,
    normalize_images: Annotated[
        bool, typer.Option("--normalize-images", help="IJB: images count alike before pooling")
    ] = False,
    cache: Annotated[
        Path, typer.Option(help="IJB: where embeddings of the images are kept")
    ] = Path("runs/cache"),
    as_json: Annotated[bool, typer.Option("--json", help="print JSON for machines")] = False,
    skip_bad_images: SkipOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Test whether the new model's queries search the old model's gallery.

    A quarter of each class's images is pooled into the gallery's template, the rest are queries.
    Self test: both sides from one model. Cross test: new queries, old templates. Compatible:
    the cross test beats the old self test, and the bootstrap interval of the difference lies
    above zero. A .bin pair set gives 10-fold accuracy; a folder with the meta files of IJB-B or
    IJB-C gives that protocol, for which --query and --gallery may be .npy files of embeddings too.

    Examples: unibct evaluate DATA --query models/new --gallery models/old

    unibct evaluate ijbc/ --protocol ijbc --query models/new --gallery models/old
    """
    from unibct.data.readers.pair_file import read_pair_file
    from unibct.data.readers.table import open_images
    from unibct.evaluation.protocols.ijb.compare import compare_on_ijb
    from unibct.evaluation.protocols.images import compare, recognised_protocol
    from unibct.evaluation.protocols.pairs import compare_on_pairs
    from unibct.progress import terminal_progress
    from unibct.report.terminal import print_evaluation

    chosen = recognised_protocol(data, protocol)
    if chosen != "images" and (images is not None or skip_bad_images):
        raise UserError("--images and --skip-bad-images are for --protocol images only")
    with terminal_progress() as progress:
        options: dict[str, Any] = {"device": device, "progress": progress}
        if chosen == "pairs":
            evaluation = compare_on_pairs(read_pair_file(Path(data)), query, gallery, **options)
        elif chosen == "images":
            options |= {"far": far, "seed": seed, "skip_bad": skip_bad_images}
            evaluation = compare(open_images(data, images), query, gallery, **options)
        else:
            options |= {"far": far, "seed": seed, "flip_test": flip_test, "cache": cache}
            options |= {"detector_scores": detector_scores, "media_mean": media_mean}
            options |= {"normalize_images": normalize_images}
            evaluation = compare_on_ijb(Path(data), query, gallery, name=chosen, **options)
    if as_json:
        print(json.dumps(evaluation.as_json(), indent=2))
    else:
        print_evaluation(evaluation)


@app.command("demo")
def demo_command(
    scenario: Annotated[str, typer.Option(help=SCENARIO_NAMES)] = "extended-data",
    method: Annotated[str, typer.Option(help=METHOD_NAMES)] = DEFAULT_METHOD,
    seed: Annotated[int, typer.Option(min=0, help="chooses the split and the weights")] = 0,
    out: Annotated[Path, typer.Option(help="folder for models and report")] = Path("runs/demo"),
    set_: SetOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="train again what is there")] = False,
    device: DeviceOption = "auto",
) -> None:
    """From nothing to a verdict on the embedded images, in a few minutes on two cores.

    Trains the old model, the new one, and a free one without compatibility; tests them on
    characters that none has seen; writes report.html with curves and pictures.

    Example: unibct demo --scenario open-class
    """
    from unibct.examples.demo import plan_demo, run_demo
    from unibct.progress import terminal_progress
    from unibct.report.pages.demo import write_report
    from unibct.report.terminal import print_evaluation

    plan = plan_demo(scenario, method, seed, overrides=set_ or ())
    with terminal_progress(overall=plan.work) as progress:
        result = run_demo(plan, out, fresh=fresh, device=device, progress=progress)
    write_report(result, out / "report.html")
    print_evaluation(result.evaluation)
    print(f"report: {out / 'report.html'}")


@app.command("rehearse")
def rehearse_command(
    scenarios: Annotated[
        str | None, typer.Option(metavar="A,B", help=f"{SCENARIO_NAMES}  [default: all]")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for sets and models")] = Path("runs/rehearsal"),
    set_: SetOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Rehearse the paper's runs on a miniature MS1Mv3 and IJB-C, from RecordIO to tables.

    Draws both sets in their true file layout, then splits, trains and evaluates each scenario by
    its recipe ms1mv3-SCENARIO with fewer epochs: minutes. The numbers say nothing about faces.

    Example: unibct rehearse --scenarios open-class
    """
    from unibct.data.scenarios import SCENARIOS
    from unibct.examples.rehearsal import rehearse
    from unibct.progress import terminal_progress
    from unibct.report.terminal import print_evaluation

    chosen = names(scenarios) or list(SCENARIOS)
    with terminal_progress() as progress:
        results = rehearse(out, chosen, overrides=set_ or (), device=device, progress=progress)
    for scenario, evaluation in results.items():
        print(f"\n{scenario}")
        print_evaluation(evaluation)


@app.command("benchmark")
def benchmark_command(
    data: Annotated[
        str, typer.Argument(metavar="[DATA]", help="training images, as everywhere")
    ] = "glyphs:train",
    test: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="test images of other classes  [default: glyphs:test, or 30 % of DATA's classes]",
        ),
    ] = None,
    scenarios: Annotated[
        str | None, typer.Option(metavar="A,B", help=f"{SCENARIO_NAMES}  [default: all]")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help=f"{METHOD_NAMES}, {ADAPTER_NAMES}, or paper, all  "
            f"[default: paper,{DEFAULT_METHOD}]",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="0,1,2", help="each: a split and weights  [default: 0,1,2]"),
    ] = None,
    chain: Annotated[
        str | None,
        typer.Option(
            metavar="A,B|none",
            help="upgrade chains by these methods  [default: unibct,unibct-plus]",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CELL", help="run only this: a scenario, a method, or a/b"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="two scenarios, one seed, no chain, by default")
    ] = False,
    recipe: RecipeOption = "glyphs",
    set_: SetOption = None,
    skip_bad_images: SkipOption = False,
    out: Annotated[Path, typer.Option(help="folder for all results")] = Path("runs/benchmark"),
    workers: Annotated[
        int | None, typer.Option(min=1, help="processes side by side  [default: one per core]")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="say what would run, and for how long")
    ] = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="make the report from what is finished")
    ] = False,
    device: DeviceOption = "auto",
) -> None:
    """Compare every method in every scenario over several seeds.

    Each cell (scenario, method, seed) is a folder; a finished one is never run again, and a
    benchmark that was stopped goes on when the same command is given. Writes report.html,
    report.md and results.csv.

    Examples: unibct benchmark --dry-run

    unibct benchmark photos/ --recipe my.toml --methods unibct,unibct-plus --seeds 0,1,2,3,4
    """
    from unibct.benchmark.jobs import make_grid
    from unibct.benchmark.run import JobsFailedError, plan_benchmark, run_benchmark
    from unibct.progress import terminal_progress
    from unibct.report.live import watched
    from unibct.report.pages.benchmark import write_benchmark_report
    from unibct.report.terminal import print_benchmark, print_plan
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
    with terminal_progress() as progress:
        benchmark = plan_benchmark(
            grid,
            out,
            only=only or (),
            workers=workers,
            device=device,
            read_images=not report_only,
            progress=progress,
        )
    if dry_run:
        print_plan(benchmark)
        return
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
