"""unibct: upgrade the model of a visual search without embedding the gallery again.

The new model is trained so that its queries search the old model's gallery as it stands.
Nothing heavy is imported before it is used: ``import unibct`` takes milliseconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unibct.advice.advise import advise
    from unibct.data.image_set import ImageSet
    from unibct.data.readers import open_images
    from unibct.data.scenarios import hold_out, split
    from unibct.embedders import open_embedder
    from unibct.embeddings.extraction import embed
    from unibct.embeddings.mapping import fit_map as fit_bridge
    from unibct.embeddings.store import Embeddings
    from unibct.errors import UserError
    from unibct.evaluation.blending import blended as blend
    from unibct.evaluation.certificate import Certificate
    from unibct.evaluation.evaluate import evaluate
    from unibct.gallery.gallery import Gallery
    from unibct.methods.compatibility_loss import CompatibilityLoss
    from unibct.models.model import Model
    from unibct.models.model_folder import load_model
    from unibct.prototypes.class_prototypes import class_prototypes
    from unibct.training.recipe import Recipe
    from unibct.training.train import train

# Where each public name lives: ``module`` or ``module:name`` within ``unibct``. Single pieces are
# imported from their rooms: ``from unibct.losses import arcface``.
_HOMES = {
    "UserError": "errors",
    "ImageSet": "data.image_set",
    "open_images": "data.readers",
    "split": "data.scenarios",
    "hold_out": "data.scenarios",
    "Model": "models.model",
    "load_model": "models.model_folder",
    "open_embedder": "embedders",
    "embed": "embeddings.extraction",
    "Embeddings": "embeddings.store",
    "class_prototypes": "prototypes.class_prototypes",
    "CompatibilityLoss": "methods.compatibility_loss",
    "fit_bridge": "embeddings.mapping:fit_map",
    "Recipe": "training.recipe",
    "train": "training.train",
    "evaluate": "evaluation.evaluate",
    "Certificate": "evaluation.certificate",
    "blend": "evaluation.blending:blended",
    "Gallery": "gallery.gallery",
    "advise": "advice.advise",
}

__all__ = [
    "Certificate",
    "CompatibilityLoss",
    "Embeddings",
    "Gallery",
    "ImageSet",
    "Model",
    "Recipe",
    "UserError",
    "advise",
    "blend",
    "class_prototypes",
    "embed",
    "evaluate",
    "fit_bridge",
    "hold_out",
    "load_model",
    "open_embedder",
    "open_images",
    "split",
    "train",
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
