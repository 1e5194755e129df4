"""unibct: upgrade the model of a visual search without embedding the gallery again.

The new model is trained so that its queries search the old model's gallery as it stands.
Nothing heavy is imported before it is used: ``import unibct`` takes milliseconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unibct.adapt import adapt as adapt_model
    from unibct.adapters import fit_adapter
    from unibct.benchmark.grid import make_grid
    from unibct.benchmark.run import plan_benchmark, run_benchmark
    from unibct.data.readers import open_images
    from unibct.embeddings import embed_images, embed_images_to_store
    from unibct.errors import UserError
    from unibct.evaluate import evaluate_upgrade
    from unibct.losses import arcface
    from unibct.metrics import identification, verification
    from unibct.models.model import load_model, save_model
    from unibct.prototypes import class_prototypes, structural_weights
    from unibct.recipe import Recipe, load_recipe
    from unibct.refinement import refined_prototypes
    from unibct.report.benchmark_page import write_benchmark_report
    from unibct.scenarios import split
    from unibct.store import append_embeddings, open_embeddings, save_embeddings
    from unibct.train import train as train_model

_HOMES = {
    "UserError": "errors",
    "open_images": "data.readers",
    "split": "scenarios",
    "load_model": "models.model",
    "save_model": "models.model",
    "embed_images": "embeddings",
    "embed_images_to_store": "embeddings",
    "open_embeddings": "store",
    "save_embeddings": "store",
    "append_embeddings": "store",
    "fit_adapter": "adapters",
    "adapt_model": "adapt:adapt",
    "class_prototypes": "prototypes",
    "structural_weights": "prototypes",
    "refined_prototypes": "refinement",
    "arcface": "losses",
    "Recipe": "recipe",
    "load_recipe": "recipe",
    "train_model": "train:train",
    "verification": "metrics",
    "identification": "metrics",
    "evaluate_upgrade": "evaluate",
    "make_grid": "benchmark.grid",
    "plan_benchmark": "benchmark.run",
    "run_benchmark": "benchmark.run",
    "write_benchmark_report": "report.benchmark_page",
}

__all__ = [
    "Recipe",
    "UserError",
    "adapt_model",
    "append_embeddings",
    "arcface",
    "class_prototypes",
    "embed_images",
    "embed_images_to_store",
    "evaluate_upgrade",
    "fit_adapter",
    "identification",
    "load_model",
    "load_recipe",
    "make_grid",
    "open_embeddings",
    "open_images",
    "plan_benchmark",
    "refined_prototypes",
    "run_benchmark",
    "save_embeddings",
    "save_model",
    "split",
    "structural_weights",
    "train_model",
    "verification",
    "write_benchmark_report",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'unibct' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    value = getattr(import_module(f"unibct.{module}"), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
