"""Weights that others have trained: files of tensors, read without unpickling anything else."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from unibct.errors import UserError, first_line
from unibct.models.folder_files import DESCRIPTION_FILE, WEIGHTS_FILE

_TORCH_SUFFIXES = (".pt", ".pth", ".bin")
_WRAPPERS = ("state_dict", "model", "model_state_dict")  # names under which files hide the tensors
_PREFIXES = ("module.", "backbone.", "model.")  # what wrappers put before the names


def weight_files(place: str | Path) -> list[Path]:
    """Return the files with weights: the path itself, or those in a folder.

    In a folder, safetensors files are preferred.
    """
    path = Path(place)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(f"weights = {place}: there is no such file or folder")
    if (path / DESCRIPTION_FILE).is_file():  # a model folder of unibct
        return [path / WEIGHTS_FILE]
    for pattern in ("model*.safetensors", "*.safetensors", "pytorch_model*.bin"):
        files = sorted(path.glob(pattern))
        if files:
            return files
    raise UserError(f"weights = {place}: the folder has no .safetensors file")


def files_digest(files: Iterable[Path]) -> str:
    """Return a hash of the content of files."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:32]


def read_weights(files: Iterable[Path]) -> dict[str, Tensor]:
    """Return the tensors in files, by name. A ``.pt`` file may contain tensors only."""
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            tensors |= _read_file(path)
        except UserError:
            raise
        except Exception as error:  # a damaged file makes torch raise almost anything
            reason = first_line(error)
            raise UserError(f"{path} cannot be read as weights: {reason}") from error
    return tensors


def _read_file(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return safetensors.torch.load_file(path)
    if path.suffix not in _TORCH_SUFFIXES:
        raise UserError(f"{path}: weights are .safetensors, {', '.join(_TORCH_SUFFIXES)} files")
    content: Any = torch.load(path, map_location="cpu", weights_only=True)
    for name in _WRAPPERS:
        if isinstance(content, dict) and isinstance(cast(Any, content).get(name), dict):
            content = cast(Any, content)[name]
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no tensors by name")
    named = cast(dict[str, Any], content)
    return {name: value for name, value in named.items() if isinstance(value, Tensor)}


def load_weights(
    network: nn.Module,
    tensors: Mapping[str, Tensor],
    place: str,
    *,
    head: tuple[str, ...] = (),
    prefixes: tuple[str, ...] = (),
    removed: tuple[str, ...] = (),
) -> None:
    """Copy tensors into a network by name.

    Args:
        network: changed in place.
        tensors: may have more parts than the network, such as a classifier, but no more layers
            inside a part that the network has.
        place: where they come from, for messages.
        head: how the names of the last layers begin. These layers keep their random weights if
            the tensors lack them or have other shapes; all others must be there and fit.
        prefixes: what may stand before every name of ``tensors``, besides the usual.
        removed: how the names of layers begin that were taken off the network.
    """
    wanted = {k: v for k, v in network.state_dict().items() if not _is_counter(k)}
    named = _without_prefix(tensors, wanted, (*_PREFIXES, *prefixes))
    fitting = {k: named[k] for k, v in wanted.items() if k in named and named[k].shape == v.shape}
    for name, tensor in wanted.items():
        if name in fitting or name.startswith(head or ("\0",)):
            continue
        if name not in named:
            raise UserError(f"{place} has no tensor {name!r}: these are weights of another network")
        raise UserError(
            f"{place}: {name} has the shape {tuple(named[name].shape)}, but this network's has "
            f"{tuple(tensor.shape)}; give the size and channels that it was trained with"
        )
    surplus = surplus_tensor(network, named, (*head, *removed))
    if surplus is not None:
        raise UserError(
            f"{place} has a tensor {surplus!r} that this network has no place for: these are "
            "weights of a larger network"
        )
    network.load_state_dict(fitting, strict=False)


def surplus_tensor(
    network: nn.Module, names: Iterable[str], removed: tuple[str, ...] = ()
) -> str | None:
    """Return the first name of a layer that a part of the network would need to have; or None.

    Parts that the network lacks as a whole, such as another task's classifier, are no surplus, nor
    are tensors that a layer computes itself or needs in training only.

    Args:
        network: the network.
        names: of tensors that are to be loaded into it.
        removed: how names begin that do not count.
    """
    known = set(network.state_dict())
    modules = {name for name, _ in cast(Iterable[tuple[str, nn.Module]], network.named_modules())}
    for name in names:
        if name in known or _is_counter(name) or name.startswith(removed or ("\0",)):
            continue
        owner, _, tensor = name.rpartition(".")
        has_layer = owner in modules
        while owner not in modules:
            owner = owner.rpartition(".")[0]
        if owner and (not has_layer or tensor in ("weight", "bias")):
            return name
    return None


def _without_prefix(
    tensors: Mapping[str, Tensor], wanted: Iterable[str], prefixes: tuple[str, ...]
) -> dict[str, Tensor]:
    """Take the prefix off that makes most names known."""
    names = set(wanted)
    candidates = (tensors_under(prefix, tensors) for prefix in ("", *prefixes))
    return max(candidates, key=lambda named: len(names & set(named)))


def tensors_under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with ``prefix``, by the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _is_counter(name: str) -> bool:
    return name.endswith("num_batches_tracked")
