"""The command that tests a new model against an old one: evaluate."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from unibct.cli.options import (
    DataArgument,
    DeviceOption,
    JsonOption,
    app,
    examples,
    option,
    takes_options,
)
from unibct.embedders import describe_embedders
from unibct.evaluation.options import EvaluationOptions
from unibct.evaluation.protocols import AUTO, PROTOCOLS

if TYPE_CHECKING:
    from unibct.evaluation.evaluation import Evaluation

_PROTOCOL_HELP = f"how to test: {AUTO} recognises the data; or " + ", ".join(
    f"{name} ({protocol.says})" for name, protocol in PROTOCOLS.items()
)


@app.command(
    "evaluate",
    epilog=examples(
        "unibct evaluate DATA --images split/test.txt --query models/new --gallery models/old",
        "unibct evaluate TEST --query emb/new --gallery emb/old --json",
        "unibct evaluate TEST --query onnx:new.onnx --gallery embeddings:old.parquet",
        "unibct evaluate TEST --query models/new --gallery models/old --certify upgrade.json",
        "unibct evaluate TEST --query models/new --gallery models/old --alpha-from VALIDATION",
        "unibct evaluate ijbc/ --protocol ijbc --query models/new --gallery models/old",
    ),
)
@takes_options
def evaluate_command(
    data: DataArgument,
    *,
    query: str = option(f"the new model: {describe_embedders()}", "NEW", default=...),
    gallery: str = option("the old model, given in the same ways", "OLD", default=...),
    options: EvaluationOptions,
    protocol: str = option(_PROTOCOL_HELP, default=AUTO),
    certify: Path | None = option(
        "write a certificate; if it says compatible, NEW may search a gallery of OLD", "FILE"
    ),
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Test whether the new model can search the old model's gallery.

    Use test classes that no model was trained on; `unibct split --hold-out` sets them aside. A
    quarter of the images of each class is pooled into a template of the gallery; the rest are
    queries. In a self test, queries and gallery come from the same model. In the cross test, the
    queries come from the new model and the gallery from the old one. The verdict is "compatible"
    if the bootstrap interval of cross test less old self test is above zero in every metric that
    decides, over ten classes or more that no model is known to have been trained on. Single images
    have a verdict of their own, which decides for a gallery. Blended queries search it too.

    A .bin pair set is tested by 10-fold accuracy instead, and a folder with the meta files of
    IJB-B or IJB-C by that protocol. For IJB, --query and --gallery may also be what `unibct embed
    --protocol ijbc` wrote, or .npy files with a row for each row of the meta files: the sum of the
    embeddings of the aligned face and of its mirror image, not normalised.
    """
    from unibct.evaluation.certificate import Certificate
    from unibct.evaluation.evaluate import UncertifiedError, evaluate
    from unibct.progress import terminal_progress

    with terminal_progress():
        try:
            evaluation = evaluate(
                data,
                old=gallery,
                new=query,
                protocol=protocol,
                certify=certify,
                device=device,
                options=options,
            )
        except UncertifiedError as error:  # the evaluation is finished: it is shown
            _print(error.evaluation, None, as_json=as_json)
            raise
    certified = None if certify is None else f"{certify}: {Certificate.read(certify).summary()}"
    _print(evaluation, certified, as_json=as_json)


def _print(evaluation: "Evaluation", certified: str | None, *, as_json: bool) -> None:
    """Print an evaluation, for machines or for people, and that a certificate was written."""
    from unibct.report.terminal import print_evaluation

    if as_json:
        print(json.dumps(evaluation.as_json(), indent=2))
    else:
        print_evaluation(evaluation)
    if certified is not None:
        typer.echo(certified, err=as_json)
