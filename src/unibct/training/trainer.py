"""The training loop: its state, its steps, and how it stops and goes on to the bit."""

import csv
import io
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unibct.data.augmentation import Changes, changed, drawn_changes
from unibct.data.decoding import Pixels
from unibct.data.loader import PixelBatches
from unibct.distributed.batch_norm import synced
from unibct.distributed.class_shards import ClassPart, sampled_classes, step_rows
from unibct.distributed.gradients import AveragedGradients
from unibct.distributed.ranks import Ranks
from unibct.embeddings.cache import cached_embeddings, embeddings_folder
from unibct.embeddings.extraction import embed_pixel_batches
from unibct.errors import UserError
from unibct.files import write_text
from unibct.losses.sharded_arcface import sharded_arcface
from unibct.methods.base import Batch, Method, OldKnowledge, Settings
from unibct.methods.table import find_method
from unibct.models.architectures.table import build_network
from unibct.models.input import InputSpec, to_input
from unibct.models.model import Model
from unibct.progress import Advance, Progress
from unibct.training.checkpoints import (
    Checkpoint,
    find_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from unibct.training.loss_scale import LossScale
from unibct.training.plan import Run
from unibct.training.recipe import Recipe
from unibct.training.stopping import StopRequest, stop_request
from unibct.training.tracking import Tracker

METRICS_FILE = "metrics.csv"
OLD_EMBEDDINGS = ".old_embeddings"  # caches; gone when the model is finished
NEW_EMBEDDINGS = ".new_embeddings"

_IN_MEMORY = 2 << 30  # bytes of embeddings that one process keeps on its device
_AGREE_EVERY = 8  # steps on a GPU, where asking all ranks whether to stop holds up the next step
_PIECE = 1 << 16  # rows of class weights that are drawn at a time
_TRACK_EVERY = 20  # steps between two points of a curve


@dataclass(frozen=True)
class _Loaded:
    """A rank's part of a batch, ready for the device."""

    pixels: Pixels
    rows: NDArray[np.int64]
    flipped: NDArray[np.bool_] | None
    everyone: NDArray[np.int64]  # the rows of the whole batch
    drawn: dict[str, Any]  # the generator's state after this batch


@dataclass
class Trainer:
    """One run's state: network, this rank's classes, optimiser, method, place."""

    run: Run
    described: dict[str, Any]
    pixels: PixelBatches
    spec: InputSpec
    device: torch.device
    out: Path
    cache: Path | None
    ranks: Ranks
    workers: int | None = None
    checkpoint_every: int | None = None
    tracker: Tracker | None = None
    epoch: int = 0
    step: int = 0  # steps of this epoch that are done
    metrics: list[dict[str, float]] = field(default_factory=list)
    network: nn.Module = field(init=False)
    class_weights: nn.Parameter = field(init=False)
    class_momentum: Tensor = field(init=False)  # of a run that samples; else the optimiser's
    optimizer: torch.optim.SGD = field(init=False)
    method: Method = field(init=False)
    labels: Tensor = field(init=False)
    sums: Tensor = field(init=False)  # of this epoch's losses
    _forward: nn.Module = field(init=False)  # the network, perhaps compiled
    _averaged: AveragedGradients = field(init=False)
    loss_scale: LossScale = field(default_factory=LossScale)
    generators: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        """Draw the weights from the seed."""
        recipe, images = self.recipe, self.pixels.images
        assert recipe.dim is not None
        assert recipe.seed is not None
        network: Any = build_network(recipe.architecture, self.spec, recipe.dim, seed=recipe.seed)
        network = network.to(self.device, memory_format=torch.channels_last)
        self.network = synced(network, self.ranks) if recipe.sync_batch_norm else network
        weights = initial_class_weights(
            len(images.class_names), recipe.dim, recipe.seed + 1, self.own_classes
        )
        self.class_weights = nn.Parameter(weights.to(self.device))
        kept = self.class_weights if self.samples else self.class_weights[:0]
        self.class_momentum = torch.zeros_like(kept, requires_grad=False)
        self.method = Method()
        self.optimizer = torch.optim.SGD(
            self._network_parameters() + ([] if self.samples else [self.class_weights]),
            lr=recipe.lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        self.labels = torch.from_numpy(images.labels).to(self.device)
        self.sums = torch.zeros(2, device=self.device)
        self._forward = self.network
        if recipe.compile:
            self._forward = cast(nn.Module, torch.compile(self.network))
        for tensor in self.network.state_dict().values():
            self.ranks.broadcast_from_first(tensor)

    @property
    def recipe(self) -> Recipe:
        """Every number of the run."""
        return self.run.recipe

    @property
    def own_classes(self) -> range:
        """The classes whose weights this rank holds."""
        return self.ranks.share(len(self.pixels.images.class_names))

    @property
    def samples(self) -> bool:
        """Whether a step looks at some of the classes only."""
        return self.recipe.sample_rate < 1

    @property
    def images_per_epoch(self) -> int:
        """Whole batches only."""
        return images_per_epoch(len(self.pixels.images), self.recipe.batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return -(-self.images_per_epoch // self.recipe.batch_size)

    @property
    def steps_done(self) -> int:
        """Of the whole run."""
        return self.epoch * self.steps_per_epoch + self.step

    def _network_parameters(self) -> list[nn.Parameter]:
        return [p for p in self.network.parameters() if p.requires_grad]

    def start_from(self, old: Model) -> None:
        """Begin from the old weights, and for classes it knows from its class weights."""
        self.network.load_state_dict(old.network.state_dict())
        if old.class_weights is None:
            return
        names, row = self.pixels.images.class_names, {n: i for i, n in enumerate(old.class_names)}
        known = [i for i in self.own_classes if names[i] in row]
        with torch.no_grad():
            weights = old.class_weights[[row[names[i]] for i in known]]
            own = [i - self.own_classes.start for i in known]
            self.class_weights[own] = weights.to(self.class_weights)

    def learn_from(self, old: Model, progress: Progress) -> None:
        """Make the method; the old embeddings of the training set are computed once."""
        entry, recipe = find_method(self.run.method), self.recipe
        embeddings, flipped = torch.empty(0, old.dim, device=self.device), None
        if entry.needs_old_embeddings:
            embeddings = self._old_embeddings(old.to(self.device), progress)
            if recipe.flip:
                flipped = self._old_embeddings(old, progress, flip=True)
        knowledge = OldKnowledge(
            embeddings=embeddings,
            labels=self.labels,
            class_names=self.pixels.images.class_names,
            old_class_names=old.class_names,
            old_class_weights=old.class_weights,
            flipped=flipped,
            ranks=self.ranks,
        )
        settings = Settings(recipe.scale, recipe.margin, recipe.tau, recipe.lam, recipe.drop)
        self.method = entry.make(knowledge, settings)
        if self.method.parameters():
            self.optimizer.add_param_group({"params": self.method.parameters()})

    def _old_embeddings(self, old: Model, progress: Progress, *, flip: bool = False) -> Any:
        folder = self.out / OLD_EMBEDDINGS / ("flipped" if flip else "plain")
        if self.cache is not None:
            folder = embeddings_folder(self.cache, old, self.pixels, flip=flip)
        label = "old embeddings, mirrored" if flip else "old embeddings"
        kept = cached_embeddings(
            old, self.pixels, folder, flip=flip, label=label, progress=progress, ranks=self.ranks
        )
        return self._at_hand(kept.vectors)

    def _new_embeddings(self, progress: Progress) -> Any:
        """The new model's view of the training set, for methods that ask for it."""
        if not self.method.needs_new_embeddings:
            return None
        if self.ranks.world == 1 and self._fits(self.pixels.images):
            vectors = embed_pixel_batches(self._model(), self.pixels).vectors
            return self._at_hand(vectors)
        self._agree_on_buffers()
        kept = cached_embeddings(
            self._model(),
            self.pixels,
            self.out / NEW_EMBEDDINGS / "plain",
            label="new embeddings",
            progress=progress,
            ranks=self.ranks,
        )
        return self._at_hand(kept.vectors)

    def _fits(self, images: Any) -> bool:
        return len(images) * (self.recipe.dim or 0) * 4 <= _IN_MEMORY

    def _at_hand(self, vectors: Any) -> Any:
        """On the device if one process has room for it; several share the rows on disk."""
        if self.ranks.world == 1 and self._fits(vectors):
            return torch.from_numpy(np.array(vectors)).to(self.device)
        return vectors

    def _warmup_folder(self) -> Path | None:
        digest = self.run.warmup_digest(self.pixels.digest)
        if self.cache is None or digest is None:
            return None
        return self.cache / f"warmup-{digest[:24]}"

    def take_up_warmup(self) -> None:
        """Begin where another run with the same warm-up was at its end."""
        folder = self._warmup_folder()
        path = None if folder is None else find_checkpoint(folder, self.ranks)
        if path is None:
            return
        found = None
        with suppress(UserError):
            found = read_checkpoint(path, self.own_classes)
        if self.ranks.any(found is None, self.device):  # damaged: make it anew
            if self.ranks.first:
                shutil.rmtree(path, ignore_errors=True)
            return
        assert found is not None
        self.restore(found, with_method=False)  # the other run's method is not ours
        self.save(self.out)

    def train(self, label: str, progress: Progress) -> None:
        """All that is left, with a checkpoint at the end of each epoch, and where it is asked."""
        recipe, per_epoch = self.recipe, self.images_per_epoch
        learnt = [*self.method.parameters(), *self._network_parameters()]
        self._averaged = AveragedGradients(learnt, self.ranks)
        done = per_epoch * self.epoch + recipe.batch_size * self.step
        with progress.task(label, per_epoch * recipe.epochs, done=done) as advance:
            while self.epoch < recipe.epochs:
                begin, first = time.perf_counter(), self.step
                if self.step == 0 and self.run.refreshes_at(self.epoch):
                    self._refresh(progress)
                with stop_request() as stop:
                    row = self._epoch(advance, stop)
                    seconds = time.perf_counter() - begin
                    images = per_epoch - first * recipe.batch_size
                    row |= {"seconds": seconds, "images_per_second": images / seconds}
                    self._end_epoch(row)
                    if self.ranks.any(stop.wanted, self.device):
                        raise KeyboardInterrupt

    def _refresh(self, progress: Progress) -> None:
        self.method.refresh(self._new_embeddings(progress))
        self.ranks.barrier()
        if self.ranks.first:
            shutil.rmtree(self.out / NEW_EMBEDDINGS, ignore_errors=True)

    def _end_epoch(self, row: dict[str, float]) -> None:
        self.metrics.append(row)
        self._track({"images_per_second": row["images_per_second"]}, self.steps_done - 1)
        self.epoch, self.step, self.generators = self.epoch + 1, 0, {}
        self.sums.zero_()
        self.save(self.out)
        shared = self._warmup_folder()
        if shared is not None and self.epoch == self.run.begin:
            # A full disk: the next run makes its own. Of several ranks none may go on alone.
            with suppress(OSError, UserError) if self.ranks.world == 1 else nullcontext():
                self.save(shared)

    def _epoch(self, advance: Advance, stop: StopRequest) -> dict[str, float]:
        recipe, steps = self.recipe, self.steps_per_epoch
        assert recipe.seed is not None
        seeds = ([recipe.seed, self.epoch], [recipe.seed, self.epoch, 1])
        rng, method_rng = (np.random.default_rng(seed) for seed in seeds)
        order = rng.permutation(len(self.pixels.images))[: self.images_per_epoch]
        if self.generators:  # in the middle of an epoch
            rng.bit_generator.state = self.generators["changes"]
            method_rng.bit_generator.state = self.generators["method"]
        self.network.train()
        for loaded in self.pixels.prepared(self._jobs(order, rng), self.workers):
            self._step(loaded, method_rng)
            self.step += 1
            method_state = method_rng.bit_generator.state
            self.generators = {"changes": loaded.drawn, "method": method_state}
            advance(len(loaded.everyone))
            if self.step == steps:
                break
            if self._is_to_stop(stop):
                self.save(self.out)
                raise KeyboardInterrupt
            if self.checkpoint_every and self.step % self.checkpoint_every == 0:
                self.save(self.out)
        return self._epoch_row(order)

    def _is_to_stop(self, stop: StopRequest) -> bool:
        if self.ranks.world == 1:
            return stop.wanted
        asks = self.device.type == "cpu" or self.step % _AGREE_EVERY == 0
        return asks and self.ranks.any(stop.wanted, self.device)

    def _jobs(
        self, order: NDArray[np.int64], rng: np.random.Generator
    ) -> Iterator[tuple[NDArray[np.int64], Callable[[Pixels], _Loaded]]]:
        """This rank's rows of each batch that is left; changes are drawn for the whole batch."""
        recipe = self.recipe
        for start in range(self.step * recipe.batch_size, len(order), recipe.batch_size):
            everyone = order[start : start + recipe.batch_size]
            own = self.ranks.batch_slice(len(everyone))
            changes = drawn_changes(
                len(everyone),
                rng,
                shift=recipe.shift,
                flip=recipe.flip,
                crop=recipe.crop,
                colour=recipe.colour,
                low_resolution=recipe.low_resolution,
            )
            drawn = rng.bit_generator.state
            rows, own_changes = everyone[own], changes.part(own)
            yield (
                rows,
                partial(
                    _load, rows=rows, changes=own_changes, everyone=everyone, drawn=dict(drawn)
                ),
            )

    def _step(self, loaded: _Loaded, method_rng: np.random.Generator) -> None:
        recipe, device = self.recipe, self.device
        place = self.epoch + (self.step + 0.5) / self.steps_per_epoch
        lr = recipe.learning_rate(place)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        rows = torch.from_numpy(loaded.rows).to(device)
        labels = self.labels[rows]
        flipped = None if loaded.flipped is None else torch.from_numpy(loaded.flipped).to(device)
        with self._autocast():
            embeddings = self._forward(to_input(loaded.pixels, self.spec, device))
        embeddings = embeddings.float()
        part, class_weights = self._classes_in_use(loaded)
        progress = place / recipe.epochs
        batch = Batch(embeddings, labels, rows, class_weights, progress, method_rng, flipped, part)
        compatible = self.epoch >= self.run.begin
        loss_cls = sharded_arcface(
            self.method.classified(batch) if compatible else embeddings,
            class_weights,
            labels,
            part,
            scale=recipe.scale,
            margin=recipe.margin,
        )
        loss = loss_cls
        if compatible and recipe.eta > 0:
            loss_comp = self.method.loss(batch)
            loss = loss + recipe.eta * loss_comp
            self.sums[1] += loss_comp.detach()
        self.optimizer.zero_grad()
        self._descend(loss, part, class_weights, lr)
        self.sums[0] += loss_cls.detach()
        if self.tracker is not None and self.step % _TRACK_EVERY == 0:
            values = {"loss": loss.item(), "loss_cls": loss_cls.item(), "lr": lr}
            self._track(values, self.steps_done)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.recipe.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.recipe.precision))

    def _classes_in_use(self, loaded: _Loaded) -> tuple[ClassPart, Tensor]:
        """Which classes this step looks at, and their weights as a leaf for gradients."""
        classes = len(self.pixels.images.class_names)
        if not self.samples:
            return ClassPart(classes, self.ranks), self.class_weights
        seed = [self.recipe.seed or 0, self.epoch, self.step, 2, self.ranks.rank]
        sampled = sampled_classes(
            self.pixels.images.labels[loaded.everyone],
            self.own_classes,
            self.recipe.sample_rate,
            np.random.default_rng(seed),
        )
        part = ClassPart(classes, self.ranks, torch.from_numpy(sampled).to(self.device))
        return part, part.rows(self.class_weights.detach()).requires_grad_()

    def _descend(self, loss: Tensor, part: ClassPart, class_weights: Tensor, lr: float) -> None:
        """Backward, and a step of all that learns."""
        recipe, half = self.recipe, self.recipe.precision == "float16"
        (loss * self.loss_scale.value if half else loss).backward()
        self._averaged.finish()
        if half and not self._unscaled(class_weights):
            return
        self.optimizer.step()
        if part.sampled is not None and class_weights.grad is not None:
            step_rows(
                self.class_weights.data,
                self.class_momentum,
                part.sampled,
                class_weights.grad,
                lr=lr,
                momentum=recipe.momentum,
                weight_decay=recipe.weight_decay,
            )

    def _unscaled(self, class_weights: Tensor) -> bool:
        """Take the loss's factor out of the gradients; False if one of them overflowed."""
        learnt = [*self._network_parameters(), class_weights, *self.method.parameters()]
        gradients = [p.grad for p in learnt if p.grad is not None]
        for gradient in gradients:
            gradient.div_(self.loss_scale.value)
        finite = bool(torch.stack([torch.isfinite(g).all() for g in gradients]).all())
        finite = not self.ranks.any(not finite, self.device)
        self.loss_scale.update(finite)
        return finite

    def _epoch_row(self, order: NDArray[np.int64]) -> dict[str, float]:
        recipe, steps = self.recipe, self.steps_per_epoch
        compatible = self.epoch >= self.run.begin
        sums = self.ranks.summed(self.sums.clone()) / self.ranks.world
        mean_cls, mean_comp = float(sums[0]) / steps, float(sums[1]) / steps
        # The losses were taken before the last step; what came of it shows in an embedding.
        first = order[: recipe.batch_size]
        look = next(self.pixels.batches(first[self.ranks.batch_slice(len(first))], len(first)))
        finite = np.isfinite(self._model().embed_pixels(look)).all()
        finite &= bool(torch.isfinite(self.class_weights).all())
        finite &= bool(np.isfinite(mean_cls + mean_comp))
        if self.ranks.any(not finite, self.device):
            raise UserError(
                f"training diverged in epoch {self.epoch}: loss or embeddings are not finite; "
                f"lower lr (now {recipe.lr}) or raise lr_warmup_epochs"
            )
        return {
            "epoch": self.epoch,
            "lr": self.optimizer.param_groups[0]["lr"],  # of the last step
            "eta": recipe.eta if compatible else 0.0,
            "loss_cls": mean_cls,
            "loss_comp": mean_comp,
        }

    def _track(self, values: dict[str, float], step: int) -> None:
        if self.tracker is not None:
            self.tracker.log(values, step)

    def _model(self) -> Model:
        assert self.recipe.dim is not None
        return Model(self.network, self.recipe.architecture, self.spec, self.recipe.dim)

    def _agree_on_buffers(self) -> None:
        """Running means that each rank took over its own images become the first rank's."""
        if not self.recipe.sync_batch_norm:
            for buffer in self.network.buffers():
                self.ranks.broadcast_from_first(buffer)

    def finished_model(self) -> Model:
        """The trained model with all that is known of it, from the last checkpoint."""
        assert self.recipe.dim is not None
        path = find_checkpoint(self.out)
        assert path is not None
        kept = read_checkpoint(path)
        network = build_network(self.recipe.architecture, self.spec, self.recipe.dim)
        network.load_state_dict(_with_prefix(kept.tensors, "network."))
        return Model(
            network=network.to(self.device).eval(),
            architecture=self.recipe.architecture,
            input=self.spec,
            dim=self.recipe.dim,
            class_names=self.pixels.images.class_names,
            class_weights=kept.class_tensors["class_weights"],
            training=self.described
            | {
                "data": self.pixels.images.name,
                "unreadable_images": list(self.pixels.unreadable),
                "torch": torch.__version__,
            },
            old_fingerprint=self.run.old_fingerprint,
        )

    def save(self, folder: Path) -> None:
        """Write a checkpoint of this moment."""
        self._agree_on_buffers()
        tensors = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        tensors["sums"] = self.ranks.gathered(self.sums[None])
        for name, parameter in self._momentum_names().items():
            buffer = self.optimizer.state[parameter].get("momentum_buffer")
            if buffer is not None:  # there is none at momentum 0
                tensors[f"momentum.{name}"] = buffer
        tensors |= {f"method.{k}": v for k, v in self.method.state().items()}
        class_tensors = {"class_weights": self.class_weights.detach()}
        buffer = self.optimizer.state.get(self.class_weights, {}).get("momentum_buffer")
        if self.samples or buffer is not None:
            class_tensors["class_momentum"] = self.class_momentum if buffer is None else buffer
        class_tensors |= {f"method.{k}": v for k, v in self.method.class_state().items()}
        state = {
            "described": self.described,
            "epoch": self.epoch,
            "step": self.step,
            "generators": self.generators,
            "loss_scale": [self.loss_scale.value, self.loss_scale.good_steps],
            "metrics": self.metrics,
        }
        save_checkpoint(
            folder,
            (self.epoch, self.step),
            state,
            tensors,
            class_tensors,
            classes=len(self.pixels.images.class_names),
            ranks=self.ranks,
        )
        if self.ranks.first and self.metrics:
            write_text(folder / METRICS_FILE, _as_csv(self.metrics))

    def restore(self, checkpoint: Checkpoint, *, with_method: bool = True) -> None:
        """Go on from a checkpoint, to the bit if the ranks are as many as they were."""
        tensors, rows = checkpoint.tensors, checkpoint.class_tensors
        self.network.load_state_dict(_with_prefix(tensors, "network."))
        with torch.no_grad():
            self.class_weights.copy_(rows["class_weights"])
            sums = tensors["sums"]  # a row for each rank
            same_ranks = len(sums) == self.ranks.world
            self.sums.copy_(sums[self.ranks.rank] if same_ranks else sums.mean(dim=0))
        kept = _with_prefix(tensors, "momentum.")
        for name, parameter in self._momentum_names().items():
            if name in kept:
                buffer = torch.empty_like(parameter).copy_(kept[name])
                self.optimizer.state[parameter]["momentum_buffer"] = buffer
        if self.samples:
            self.class_momentum.copy_(rows["class_momentum"])
        elif "class_momentum" in rows:
            buffer = rows["class_momentum"].to(self.device)
            self.optimizer.state[self.class_weights]["momentum_buffer"] = buffer
        if with_method:
            state = _with_prefix(tensors, "method.") | _with_prefix(rows, "method.")
            self.method.load_state({k: v.to(self.device) for k, v in state.items()})
        state = checkpoint.state
        self.epoch, self.step, self.metrics = state["epoch"], state["step"], state["metrics"]
        self.generators, self.loss_scale = state["generators"], LossScale(*state["loss_scale"])

    def _momentum_names(self) -> dict[str, nn.Parameter]:
        named = {f"network.{i}": p for i, p in enumerate(self._network_parameters())}
        return named | {f"method.{i}": p for i, p in enumerate(self.method.parameters())}


def images_per_epoch(images: int, batch_size: int) -> int:
    """Whole batches only: a rest of one or two images would upset batch normalisation."""
    return images // batch_size * batch_size if images >= batch_size else images


def initial_class_weights(classes: int, dim: int, seed: int, own: range) -> Tensor:
    """(own classes, dim) rows of one random matrix, which depends on nothing but the seed.

    It is drawn in pieces, so that no rank holds the whole of it.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = torch.empty(len(own), dim)
    for begin in range(0, classes, _PIECE):
        drawn = torch.randn(min(_PIECE, classes - begin), dim, generator=generator) * 0.01
        low, high = max(begin, own.start), min(begin + len(drawn), own.stop)
        if low < high:
            weights[low - own.start : high - own.start] = drawn[low - begin : high - begin]
    return weights


def _load(
    pixels: Pixels,
    *,
    rows: NDArray[np.int64],
    changes: Changes,
    everyone: NDArray[np.int64],
    drawn: dict[str, Any],
) -> _Loaded:
    return _Loaded(changed(pixels, changes), rows, changes.flipped, everyone, drawn)


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _as_csv(rows: list[dict[str, float]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
