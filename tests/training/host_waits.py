"""Counts how often a step makes the host wait for its device, on a machine without a GPU.

torch's ``meta`` device stands for the GPU: its tensors have shapes but no values, so whatever needs
a value, or a shape that depends on values, has to go through here.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
META = torch.device("meta")
# The results of these depend on values, so the host has to wait until they are known.
NEEDS_VALUES = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.bincount.default,
    aten.repeat_interleave.Tensor,
}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}


class HostWaits(TorchDispatchMode):
    """Counts what waits for the device ``meta``, by the name of the operation."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if func is aten._to_copy.default and "device" in kwargs:
            return self._copied(func, source, kwargs)
        if func is aten.copy_.default and args[0].device != args[1].device:
            blocking = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
            if blocking:
                self.waits.append("copy_")
            return args[0] if args[0].device == META else args[0].zero_()
        if func in INDEXING and _on_meta(source):
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
            if masks or any(i is not None and i.device != META for i in args[1]):
                self.waits.append("mask as an index" if masks else "index from the host")
        if func in NEEDS_VALUES and _on_meta(source):
            self.waits.append(str(func))
            if func is aten.nonzero.default:
                return torch.empty((source.shape[0], source.ndim), dtype=torch.int64, device=META)
            return 1.0 if source.dtype.is_floating_point else 1
        return func(*args, **kwargs)

    def _copied(self, func, source, kwargs):
        target = torch.device(kwargs["device"])
        if source.device != target and not kwargs.get("non_blocking", False):
            self.waits.append(f"copy from {source.device.type} to {target.type}")
        if source.device == META and target != META:
            return torch.zeros(source.shape, dtype=kwargs.get("dtype") or source.dtype)
        return func(source, **kwargs)


def _on_meta(tensor):
    return tensor is not None and tensor.device == META
