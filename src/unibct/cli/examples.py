"""Commands that run on images that ship with the package: demo, rehearse."""

from pathlib import Path
from typing import Annotated

import typer

from unibct.cli.options import METHOD_NAMES, SCENARIO_NAMES, DeviceOption, SetOption, app, names


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
