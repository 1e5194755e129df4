"""What torchvision lacks beside a torch that it was not built for."""

from importlib import metadata

import torch

_libraries = []  # operators live as long as the object that declared them


def declare_torchvision_operators() -> None:
    """Declare torchvision's operators, so that it can be imported beside a CPU build of torch.

    timm and transformers import torchvision but use none of these operators. Call this before the
    first import of either, in each process.
    """
    try:
        its_build = metadata.version("torchvision").partition("+")[2]
    except metadata.PackageNotFoundError:
        return
    if _libraries or its_build == torch.__version__.partition("+")[2]:
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)
