"""unibct: upgrade the model of a visual search without embedding the gallery again.

The new model is trained so that its queries search the old model's gallery as it stands.
Nothing heavy is imported before it is used: ``import unibct`` takes milliseconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unibct.advice.advise import AdviceRequest, advise
    from unibct.benchmark.grid import make_grid
    from unibct.benchmark.run import plan_benchmark, run_benchmark
    from unibct.data.image_set import ImageSet
    from unibct.data.readers import open_images
    from unibct.data.scenarios import hold_out, split
    from unibct.embedders import open_embedder
    from unibct.embeddings.extraction import embed
    from unibct.embeddings.forms import read_embeddings, write_embeddings
    from unibct.embeddings.mapping import apply_map, fit_map
    from unibct.embeddings.score_scale import score_scale
    from unibct.embeddings.store import append_embeddings, open_embeddings, save_embeddings
    from unibct.errors import UserError
    from unibct.evaluation.blending import blended, choose_alpha
    from unibct.evaluation.certificate import Certificate
    from unibct.evaluation.evaluate import evaluate
    from unibct.evaluation.identification import identification
    from unibct.evaluation.verification import verification
    from unibct.evaluation.weight_choice import choose_weights
    from unibct.export.export_model import export_model
    from unibct.gallery.gallery import Gallery, NameCounts, count_names
    from unibct.gallery.page import serve_gallery
    from unibct.gallery.search import Queries
    from unibct.gallery.search_request import SearchRequest
    from unibct.losses import arcface
    from unibct.maps.space_map import load_map, save_map
    from unibct.maps.vector_map import fit_vector_map
    from unibct.methods.compatibility_loss import CompatibilityLoss
    from unibct.models.blended_weights import blend_weights
    from unibct.models.model_folder import load_model, save_model
    from unibct.prototypes.class_prototypes import class_prototypes
    from unibct.prototypes.weights import structural_weights
    from unibct.report.model_card import write_model_card
    from unibct.report.pages import write_benchmark_report
    from unibct.training.default_recipe import recipe_for
    from unibct.training.mapped_model import adapt as adapt_model
    from unibct.training.recipe import Recipe, load_recipe
    from unibct.training.train import train

_HOMES = {
    "UserError": "errors",
    "ImageSet": "data.image_set",
    "open_images": "data.readers",
    "split": "data.scenarios",
    "hold_out": "data.scenarios",
    "load_model": "models.model_folder",
    "save_model": "models.model_folder",
    "embed": "embeddings.extraction",
    "open_embedder": "embedders",
    "open_embeddings": "embeddings.store",
    "read_embeddings": "embeddings.forms",
    "write_embeddings": "embeddings.forms",
    "save_embeddings": "embeddings.store",
    "append_embeddings": "embeddings.store",
    "score_scale": "embeddings.score_scale",
    "fit_vector_map": "maps.vector_map",
    "fit_map": "embeddings.mapping",
    "apply_map": "embeddings.mapping",
    "save_map": "maps.space_map",
    "load_map": "maps.space_map",
    "adapt_model": "training.mapped_model:adapt",
    "blend_weights": "models.blended_weights",
    "choose_weights": "evaluation.weight_choice",
    "class_prototypes": "prototypes.class_prototypes",
    "structural_weights": "prototypes.weights",
    "arcface": "losses",
    "CompatibilityLoss": "methods.compatibility_loss",
    "Recipe": "training.recipe",
    "load_recipe": "training.recipe",
    "recipe_for": "training.default_recipe",
    "train": "training.train",
    "verification": "evaluation.verification",
    "identification": "evaluation.identification",
    "evaluate": "evaluation.evaluate",
    "Certificate": "evaluation.certificate",
    "Gallery": "gallery.gallery",
    "Queries": "gallery.search",
    "serve_gallery": "gallery.page",
    "SearchRequest": "gallery.search",
    "NameCounts": "gallery.gallery",
    "count_names": "gallery.gallery",
    "blended": "evaluation.blending",
    "choose_alpha": "evaluation.blending",
    "AdviceRequest": "advice.advise",
    "advise": "advice.advise",
    "export_model": "export.export_model",
    "write_model_card": "report.model_card",
    "make_grid": "benchmark.grid",
    "plan_benchmark": "benchmark.run",
    "run_benchmark": "benchmark.run",
    "write_benchmark_report": "report.pages",
}

__all__ = [
    "AdviceRequest",
    "Certificate",
    "CompatibilityLoss",
    "Gallery",
    "ImageSet",
    "NameCounts",
    "Queries",
    "Recipe",
    "SearchRequest",
    "UserError",
    "adapt_model",
    "advise",
    "append_embeddings",
    "apply_map",
    "arcface",
    "blend_weights",
    "blended",
    "choose_alpha",
    "choose_weights",
    "class_prototypes",
    "count_names",
    "embed",
    "evaluate",
    "export_model",
    "fit_map",
    "fit_vector_map",
    "hold_out",
    "identification",
    "load_map",
    "load_model",
    "load_recipe",
    "make_grid",
    "open_embedder",
    "open_embeddings",
    "open_images",
    "plan_benchmark",
    "read_embeddings",
    "recipe_for",
    "run_benchmark",
    "save_embeddings",
    "save_map",
    "save_model",
    "score_scale",
    "serve_gallery",
    "split",
    "structural_weights",
    "train",
    "verification",
    "write_benchmark_report",
    "write_embeddings",
    "write_model_card",
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
