"""The command line: each command parses, calls one function and prints."""

import io
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from unibct.errors import UserError
from unibct.progress import is_first_process

SCENARIO_NAMES = "extended-data, open-data, extended-class, open-class, identical-data"
METHOD_NAMES = (
    "none, regress, contrast, bct, unibct-centroid, unibct-drop, unibct, unibct-plus, mixbct, "
    "advbct, nccl, ndpp"
)
ADAPTER_NAMES = "procrustes, linear, mlp"
_OTHERS_WAIT = 3.0  # seconds
_INTERRUPTED = 130  # what a command returns on Ctrl-C

app = typer.Typer(
    name="unibct",
    help=(
        "Upgrade the model of a visual search without embedding the gallery again.\n\n"
        "DATA is a folder root/<class>/<image> (PNG, JPEG, WebP; any size), a RecordIO file "
        "train.rec, a list of lines `path label`, WebDataset shards-{000..012}.tar, or the "
        "embedded set glyphs:train, glyphs:val, glyphs:test. Where it is not recognised, say "
        "folder:PATH, recordio:PATH, list:PATH or webdataset:PATH. Start with `unibct demo`."
    ),
    epilog="Each command explains itself: unibct train --help. Errors: exit code 2.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

DataArgument = Annotated[
    str, typer.Argument(metavar="DATA", help="a folder, .rec, list, .tar, or glyphs:train|val|test")
]
ImagesOption = Annotated[
    Path | None,
    typer.Option("--images", metavar="LIST", help="only these images: one id per line"),
]
SkipOption = Annotated[
    bool, typer.Option("--skip-bad-images", help="leave unreadable images out, and name them")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="change one number of the recipe"),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps")]


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,
) -> None:
    """Options of every command."""
    # main() handles both before the commands are parsed, so that they work in any place.


@app.command("split")
def split_command(
    data: DataArgument,
    scenario: Annotated[str, typer.Option(help=SCENARIO_NAMES)],
    out: Annotated[Path, typer.Option(help="folder for old.txt and new.txt")],
    fraction: Annotated[float, typer.Option(help="share of the images or classes in old")] = 0.3,
    seed: Annotated[int, typer.Option(min=0, help="chooses the sample")] = 666,
) -> None:
    """Split a data set into an old and a new training set.

    Writes two lists of image ids, old.txt and new.txt, for `unibct train --images`.

    Example: unibct split photos/ --scenario open-class --out split/
    """
    from unibct.data.readers import open_images
    from unibct.data.split_files import write_split
    from unibct.report.tables import print_counts

    print_counts(write_split(open_images(data), scenario, out, fraction=fraction, seed=seed))


@app.command("train")
def train_command(
    data: DataArgument,
    out: Annotated[Path, typer.Option(help="the model's folder")],
    images: ImagesOption = None,
    old: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="the old model's folder")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help=f"{METHOD_NAMES}  [default: unibct-plus with --old, else none]"),
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="a TOML file, or a shipped one: glyphs, paper, ms1mv3-SCENARIO"
        ),
    ] = "glyphs",
    set_: SetOption = None,
    seed: Annotated[int | None, typer.Option(help="the recipe's seed")] = None,
    warm_start: Annotated[
        bool, typer.Option("--warm-start", help="begin from the old model's weights")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on from the checkpoint")] = False,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(metavar="STEPS", min=1, help="checkpoints within an epoch, too"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="threads that read images ahead  [default: one per core]"),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="write TensorBoard's event files")
    ] = None,
    skip_bad_images: SkipOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Train a model, with --old so that its queries search the old model's gallery.

    A checkpoint is kept after each epoch; a run that was stopped, by Ctrl-C too, goes on with
    --resume. metrics.csv in the model's folder has a line per epoch. Under torchrun the processes
    share each batch and the classes (docs/scaling.md); OUT/logs has a file for each.

    Examples: unibct train DATA --images split/old.txt --out models/old

    unibct train DATA --images split/new.txt --old models/old --out models/new
    --set epochs=20

    torchrun --nproc-per-node=4 -m unibct train DATA --out models/old
    """
    from unibct.data.readers import open_images
    from unibct.models.model import load_model
    from unibct.progress import terminal_progress
    from unibct.recipe import load_recipe
    from unibct.train import train

    overrides = [*(set_ or []), *([] if seed is None else [f"seed={seed}"])]
    overrides += ["warm_start=true"] if warm_start else []
    settings = load_recipe(recipe, overrides)
    image_set = open_images(data, images)
    old_model = None if old is None else load_model(old)
    with terminal_progress(logs=out / "logs") as progress:
        model = train(
            image_set,
            settings,
            out,
            old=old_model,
            method=method,
            resume=resume,
            skip_bad=skip_bad_images,
            device=device,
            workers=workers,
            checkpoint_every=checkpoint_every,
            tensorboard=tensorboard,
            progress=progress,
        )
    _say(f"{out}: {model.architecture}, dimension {model.dim}, fingerprint {model.fingerprint}")


@app.command("adapt")
def adapt_command(
    data: DataArgument,
    new: Annotated[Path, typer.Option(metavar="MODEL", help="the new model's folder")],
    old: Annotated[Path, typer.Option(metavar="MODEL", help="the old model's folder")],
    out: Annotated[Path, typer.Option(help="folder for the adapted model")],
    kind: Annotated[str, typer.Option(help=ADAPTER_NAMES)] = "linear",
    images: ImagesOption = None,
    seed: Annotated[int, typer.Option(min=0, help="of the mlp")] = 0,
    skip_bad_images: SkipOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Map a finished new model's queries into the old space, without training it again.

    Fits a map on images that both models embed. Compatible training gives better queries; this
    is for a model that cannot be trained again.

    Example: unibct adapt DATA --new models/free --old models/old --out models/adapted
    """
    from unibct.adapt import adapt
    from unibct.data.readers import open_images
    from unibct.files import require_absent
    from unibct.models.model import load_model, save_model
    from unibct.progress import terminal_progress
    from unibct.train import pick_device

    require_absent(out)
    target = pick_device(device)
    new_model, old_model = (load_model(path, device=target) for path in (new, old))
    image_set = open_images(data, images)
    with terminal_progress() as progress:
        adapted = adapt(
            new_model,
            old_model,
            image_set,
            kind=kind,
            seed=seed,
            skip_bad=skip_bad_images,
            progress=progress,
        )
    save_model(adapted, out)
    print(f"{out}: {kind} map of {new}, fingerprint {adapted.fingerprint}")


@app.command("convert")
def convert_command(
    data: DataArgument,
    to: Annotated[str, typer.Option(help="recordio (train.rec, train.idx, property) or folder")],
    out: Annotated[Path, typer.Option(help="a new folder")],
    images: ImagesOption = None,
    skip_bad_images: SkipOption = False,
) -> None:
    """Write a data set in another layout; the encoded images stay as they are, to the byte.

    The folder is there when all is in it. A run that was stopped goes on with the same command.

    Examples: unibct convert faces/ --to recordio --out ms1mv3-like

    unibct convert ms1mv3/train.rec --to folder --out faces
    """
    from unibct.data.convert import convert
    from unibct.data.readers import open_images
    from unibct.progress import terminal_progress

    image_set = open_images(data, images)
    with terminal_progress() as progress:
        written = convert(image_set, out, to=to, skip_bad=skip_bad_images, progress=progress)
    print(f"{out}: {written:,} images as {to}")


@app.command("embed")
def embed_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="a model's folder")],
    data: DataArgument,
    out: Annotated[Path, typer.Option(help="folder for the embeddings")],
    images: ImagesOption = None,
    dtype: Annotated[str, typer.Option(help="float32, or float16: half the size")] = "float32",
    skip_bad_images: SkipOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Embed every image of a data set.

    The folder holds shards of L2-normalised rows, one per image, which are memory-mapped when it
    is opened, their ids and labels, and a description with the model's fingerprint. A command that
    was stopped goes on where it was when it is given again.

    Example: unibct embed models/new DATA --out emb/new
    """
    from unibct.data.readers import open_images
    from unibct.embeddings import embed_images_to_store
    from unibct.models.model import load_model
    from unibct.progress import terminal_progress
    from unibct.ranks import current_ranks
    from unibct.train import pick_device

    loaded = load_model(model, device=pick_device(device))
    image_set = open_images(data, images)
    with terminal_progress() as progress:
        result = embed_images_to_store(
            loaded,
            image_set,
            out,
            skip_bad=skip_bad_images,
            dtype=dtype,
            progress=progress,
            ranks=current_ranks(),
        )
    _say(f"{out}: {len(result):,} embeddings of dimension {loaded.dim}")


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
    from unibct.compare import compare, recognised_protocol
    from unibct.data.pair_file import read_pair_file
    from unibct.data.readers import open_images
    from unibct.ijb.compare import compare_on_ijb
    from unibct.pair_sets import compare_on_pairs
    from unibct.progress import terminal_progress
    from unibct.report.tables import print_evaluation

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
    method: Annotated[str, typer.Option(help=METHOD_NAMES)] = "unibct-plus",
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
    from unibct.demo import plan_demo, run_demo
    from unibct.progress import terminal_progress
    from unibct.report.page import write_report
    from unibct.report.tables import print_evaluation

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
    from unibct.progress import terminal_progress
    from unibct.rehearsal import rehearse
    from unibct.report.tables import print_evaluation
    from unibct.scenarios import SCENARIOS

    chosen = _names(scenarios) or list(SCENARIOS)
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
            help=f"{METHOD_NAMES}, {ADAPTER_NAMES}, or paper, all  [default: paper,unibct-plus]",
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
    recipe: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="a TOML file, or a shipped one: glyphs, paper, ms1mv3-SCENARIO"
        ),
    ] = "glyphs",
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
    from unibct.benchmark.grid import make_grid
    from unibct.benchmark.run import JobsFailedError, plan_benchmark, run_benchmark
    from unibct.progress import terminal_progress
    from unibct.recipe import load_recipe
    from unibct.report.benchmark_page import write_benchmark_report
    from unibct.report.live import watched
    from unibct.report.tables import print_benchmark, print_plan

    grid = make_grid(
        data,
        test=test,
        recipe=load_recipe(recipe, set_ or ()),
        quick=quick,
        scenarios=_names(scenarios),
        methods=_names(methods),
        seeds=[_number(seed, "--seeds") for seed in _names(seeds)],
        chain=None if chain is None else [name for name in _names(chain) if name != "none"],
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


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _number(text: str, option: str) -> int:
    if not text.isdecimal():
        raise UserError(f"{option} {text}: write numbers with commas between them, such as 0,1,2")
    return int(text)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; bad input is one line on standard error and exit code 2."""
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without → must not stop a job
    if given == ["--version"]:
        from importlib.metadata import version

        print(f"unibct {version('unibct')}")
        return
    try:
        status = app(args=given or ["--help"], prog_name="unibct", standalone_mode=False)
    except UserError as error:
        if debug:
            raise
        _fail(str(error), 2)
    except OSError as error:
        if debug:
            raise
        place = f"{error.filename}: " if error.filename else "reading or writing failed: "
        _fail(f"{place}{error.strerror or error}", 2)
    except Exception as error:
        show = getattr(error, "format_message", None)  # a wrong option or argument
        if debug or show is None:
            raise
        _fail(f"{show()} (unibct --help explains)".replace("\n", " "), 2)
    else:
        if status == _INTERRUPTED:
            _fail("stopped; the same command goes on from here (train: with --resume)", status)
        sys.exit(status if isinstance(status, int) else 0)


def _say(text: str) -> None:
    """Print a result, once."""
    if is_first_process():
        print(text)


def _fail(message: str, code: int) -> None:
    if not is_first_process():
        time.sleep(_OTHERS_WAIT)  # the first process mostly says the same, and ends us all
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
