"""The command that runs on images that come with the package: demo."""

from pathlib import Path

from unibct.cli.options import (
    DeviceOption,
    SetOption,
    app,
    examples,
    flag,
    method_listing,
    option,
    scenario_listing,
)
from unibct.methods import DEFAULT_METHOD

_DEMO_EXAMPLES = examples("unibct demo", "unibct demo --scenario open-class --method unibct")


@app.command("demo", epilog=f"{_DEMO_EXAMPLES}\n\n{scenario_listing()}\n\n{method_listing()}")
def demo_command(
    scenario: str = option(
        "how the new training set relates to the old one; see the list below",
        default="extended-data",
    ),
    method: str = option(
        "how the new model is made compatible; see the list below", default=DEFAULT_METHOD
    ),
    seed: int = option("chooses the split and the initial weights", default=0, min=0),
    out: Path = option(
        "folder for the models, the gallery and the report", default=Path("runs/demo")
    ),
    set_: SetOption = None,
    fresh: bool = flag("--fresh", "train again even if the models are there"),
    device: DeviceOption = "auto",
) -> None:
    """Train, test and upgrade on the images that come with unibct.

    Trains an old model, a compatible new model, and a free new model without compatibility.
    Tests them on characters that none of them has seen. Then carries the upgrade out on a small
    gallery: upgrade, backfill, rollback. Writes report.html with curves and pictures. Takes a few
    minutes on two cores.
    """
    from unibct.examples.demo import plan_demo, run_demo
    from unibct.progress import terminal_progress
    from unibct.report.pages import write_report
    from unibct.report.terminal import print_evaluation, print_story

    plan = plan_demo(scenario, method, seed, overrides=set_ or ())
    with terminal_progress(overall=plan.work):
        result = run_demo(plan, out, fresh=fresh, device=device)
    write_report(result, out / "report.html")
    print_evaluation(result.evaluation)
    if result.gallery is not None:
        print_story(result.gallery)
        print(f"gallery: {result.gallery.folder}  (unibct gallery status shows its steps)")
    print(f"report: {out / 'report.html'}")
