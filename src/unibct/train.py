"""Training a model, alone or so that it is compatible with an old one."""

import csv
import io
import json
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from unibct import losses
from unibct.data.augment import augmented
from unibct.data.batches import PixelBatches, read_pixels
from unibct.data.sets import ImageSet
from unibct.embeddings import cached_embeddings, embed_pixel_batches
from unibct.errors import UserError
from unibct.files import remove_temporaries, require_absent, write_text
from unibct.methods import Batch, Method, OldKnowledge, Settings, find_method
from unibct.models.architectures import InputSpec, build_network, find_architecture
from unibct.models.model import (
    CLASSIFIER_FILE,
    DESCRIPTION_FILE,
    WEIGHTS_FILE,
    Model,
    load_model,
    save_model,
    save_tensors,
    to_input,
)
from unibct.progress import Progress, Silent
from unibct.recipe import Recipe
from unibct.runs import Run, plan_run, require_same_run

CHECKPOINT_FILE = "checkpoint.safetensors"
METRICS_FILE = "metrics.csv"
OLD_EMBEDDINGS = ".old_embeddings"  # a cache; gone when the model is finished

_OWN_FILES = (CHECKPOINT_FILE, METRICS_FILE, WEIGHTS_FILE, CLASSIFIER_FILE, DESCRIPTION_FILE)


def pick_device(name: str = "auto") -> torch.device:
    """``auto``: a GPU if there is one, else the CPU."""
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"device {name!r} cannot be used: {reason}") from error
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def train(
    images: ImageSet,
    recipe: Recipe,
    out: str | Path,
    *,
    old: Model | None = None,
    method: str | None = None,
    resume: bool = False,
    skip_bad: bool = False,
    cache: Path | None = None,
    device: str = "auto",
    label: str = "training",
    progress: Progress | None = None,
) -> Model:
    """Train a model and write its folder.

    Args:
        images: the training set.
        recipe: every number of the run.
        out: the model's folder; while training it holds a checkpoint and the metrics.
        old: the old model that the new one is to be compatible with.
        method: a name from ``METHODS``; by default ``unibct-plus`` with an old
            model, else ``none``.
        resume: go on from the checkpoint in ``out``, if there is one of the same run.
        skip_bad: leave unreadable images out instead of refusing.
        cache: a folder in which several runs share what they have in common: the old embeddings
            of a training set, and the state at the end of the same warm-up. The result is the same.
        device: ``auto``, ``cpu``, ``cuda``, …
        label: what the progress bar calls it.
        progress: told of each image.

    Returns:
        The trained model, in evaluation mode.
    """
    progress, out = progress or Silent(), Path(out)
    run = plan_run(images, recipe, old=old, method=method)
    target = pick_device(device)
    if resume:
        remove_temporaries(out, _OWN_FILES)
    finished = resume and (out / DESCRIPTION_FILE).is_file()
    checkpoint = _read_checkpoint(out) if resume and not finished else None
    if not finished and checkpoint is None:
        _require_nothing_but_cache(out)

    spec = find_architecture(run.recipe.architecture).input
    pixels = read_pixels(images, *spec.size, skip_bad=skip_bad, progress=progress)
    run = plan_run(pixels.images, recipe, old=old, method=method)
    described = run.described() | {"pixels": pixels.digest}
    if finished:
        model = load_model(out, device=target)
        require_same_run(model.training, described, out)
        _remove_working_files(out)
        progress.note(f"{out}: already trained")
        work = _images_per_epoch(len(pixels.images), run.recipe.batch_size) * run.recipe.epochs
        with progress.task(label, work, done=work):
            return model
    if checkpoint is not None:
        require_same_run(checkpoint.described, described, out)
    try:
        trainer = _Trainer(run, described, pixels, spec, target, out, cache)
        if old is not None and run.recipe.warm_start:
            trainer.start_from(old)
        if old is not None:
            trainer.learn_from(old, progress)
        if checkpoint is not None:
            trainer.restore(checkpoint)
        else:
            trainer.take_up_warmup()
        trainer.train(label, progress)
        model = trainer.finished_model()
        save_model(model, out)
    except UserError:
        if not (out / CHECKPOINT_FILE).is_file():
            shutil.rmtree(out, ignore_errors=True)
        raise
    _remove_working_files(out)
    return model


def embeddings_folder(
    cache: Path, model: Model, pixels: PixelBatches, *, flip: bool = False
) -> Path:
    """Where runs that share a cache keep a model's embeddings of a training set."""
    view = "-flipped" if flip else ""
    return cache / f"embeddings-{model.fingerprint[:12]}-{pixels.digest[:12]}{view}"


def _remove_working_files(out: Path) -> None:
    (out / CHECKPOINT_FILE).unlink(missing_ok=True)
    shutil.rmtree(out / OLD_EMBEDDINGS, ignore_errors=True)


@dataclass
class _Checkpoint:
    """The state at the end of an epoch."""

    described: dict[str, Any]
    epochs_done: int
    metrics: list[dict[str, float]]
    tensors: dict[str, Tensor]


@dataclass
class _Trainer:
    """The state of one run: network, classifier, optimiser, method."""

    run: Run
    described: dict[str, Any]
    pixels: PixelBatches
    spec: InputSpec
    device: torch.device
    out: Path
    cache: Path | None
    epochs_done: int = 0
    metrics: list[dict[str, float]] = field(default_factory=list)
    network: nn.Module = field(init=False)
    class_weights: nn.Parameter = field(init=False)
    optimizer: torch.optim.SGD = field(init=False)
    method: Method = field(init=False)
    labels: Tensor = field(init=False)

    def __post_init__(self) -> None:
        """Draw the weights from the seed."""
        recipe = self.run.recipe
        assert recipe.dim is not None
        assert recipe.seed is not None
        images = self.pixels.images
        network = build_network(recipe.architecture, self.spec, recipe.dim, seed=recipe.seed)
        self.network = network.to(self.device, memory_format=torch.channels_last)  # pyright: ignore
        generator = torch.Generator().manual_seed(recipe.seed + 1)
        weights = torch.randn(len(images.class_names), recipe.dim, generator=generator) * 0.01
        self.class_weights = nn.Parameter(weights.to(self.device))
        self.method = Method()
        self.optimizer = torch.optim.SGD(
            self._parameters(),
            lr=recipe.lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        self.labels = torch.from_numpy(images.labels).to(self.device)

    def _parameters(self) -> list[nn.Parameter]:
        trained = [p for p in self.network.parameters() if p.requires_grad]
        return [*trained, self.class_weights, *self.method.parameters()]

    def start_from(self, old: Model) -> None:
        """Begin from the old weights, and for classes it knows from its class weights."""
        self.network.load_state_dict(old.network.state_dict())
        if old.class_weights is None:
            return
        row = {name: i for i, name in enumerate(old.class_names)}
        known = [i for i, name in enumerate(self.pixels.images.class_names) if name in row]
        names = self.pixels.images.class_names
        with torch.no_grad():
            weights = old.class_weights[[row[names[i]] for i in known]]
            self.class_weights[known] = weights.to(self.class_weights)

    def learn_from(self, old: Model, progress: Progress) -> None:
        """Make the method; the old embeddings of the training set are computed once."""
        entry = find_method(self.run.method)
        recipe = self.run.recipe
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
        )
        settings = Settings(recipe.scale, recipe.margin, recipe.tau, recipe.lam, recipe.drop)
        self.method = entry.make(knowledge, settings)
        if self.method.parameters():
            self.optimizer.add_param_group({"params": self.method.parameters()})

    def _old_embeddings(self, old: Model, progress: Progress, *, flip: bool = False) -> Tensor:
        folder = self.out / OLD_EMBEDDINGS / ("flipped" if flip else "plain")
        if self.cache is not None:
            folder = embeddings_folder(self.cache, old, self.pixels, flip=flip)
        label = "old embeddings, mirrored" if flip else "old embeddings"
        kept = cached_embeddings(
            old, self.pixels, folder, flip=flip, label=label, progress=progress
        )
        return torch.from_numpy(np.array(kept.vectors)).to(self.device)

    def _warmup_file(self) -> Path | None:
        digest = self.run.warmup_digest(self.pixels.digest)
        return (
            None if self.cache is None or digest is None else self.cache / f"warmup-{digest[:24]}"
        )

    def take_up_warmup(self) -> None:
        """Begin where another run with the same warm-up was at its end."""
        path, found = self._warmup_file(), None
        if path is not None:
            with suppress(UserError):  # damaged: make it anew
                found = _read_checkpoint(path)
        if found is None:
            return
        own = {k: v for k, v in found.tensors.items() if not k.startswith("method.")}
        self.restore(replace(found, tensors=own))  # the other run's method is not ours
        self._save_checkpoint(self.out)

    def train(self, label: str, progress: Progress) -> None:
        """All epochs that are left, each with a checkpoint at its end."""
        recipe = self.run.recipe
        per_epoch = _images_per_epoch(len(self.pixels.images), recipe.batch_size)
        total = per_epoch * recipe.epochs
        done = per_epoch * self.epochs_done
        with progress.task(label, total, done=done) as advance:
            for epoch in range(self.epochs_done, recipe.epochs):
                begin = time.perf_counter()
                if self.run.refreshes_at(epoch):
                    self.method.refresh(self._new_embeddings())
                row = self._epoch(epoch, advance)
                seconds = time.perf_counter() - begin
                row |= {"seconds": seconds, "images_per_second": per_epoch / seconds}
                self.metrics.append(row)
                self.epochs_done = epoch + 1
                self._save_checkpoint(self.out)
                shared = self._warmup_file()
                if shared is not None and self.epochs_done == self.run.begin:
                    with suppress(OSError, UserError):  # a full disk: the next run makes its own
                        self._save_checkpoint(shared)

    def _new_embeddings(self) -> Tensor | None:
        """The new model's view of the training set, for methods that ask for it."""
        if not self.method.needs_new_embeddings:
            return None
        vectors = embed_pixel_batches(self._model(), self.pixels).vectors
        return torch.from_numpy(vectors).to(self.device)

    def _epoch(self, epoch: int, advance: Any) -> dict[str, float]:
        recipe = self.run.recipe
        assert recipe.seed is not None
        compatible, eta = epoch >= self.run.begin, recipe.eta
        rng, method_rng = (np.random.default_rng([recipe.seed, epoch, *own]) for own in ((), (1,)))
        images = len(self.pixels.images)
        used = _images_per_epoch(images, recipe.batch_size)
        order = rng.permutation(images)[:used]
        steps = -(-used // recipe.batch_size)
        sums = torch.zeros(2, device=self.device)
        self.network.train()
        row = 0
        for step, pixels in enumerate(self.pixels.batches(order, recipe.batch_size)):
            for group in self.optimizer.param_groups:
                group["lr"] = recipe.learning_rate(epoch + (step + 0.5) / steps)
            rows = torch.from_numpy(order[row : row + len(pixels)]).to(self.device)
            row += len(pixels)
            labels = self.labels[rows]
            changed, mirrored = augmented(
                pixels,
                rng,
                shift=recipe.shift,
                flip=recipe.flip,
                crop=recipe.crop,
                colour=recipe.colour,
                low_resolution=recipe.low_resolution,
            )
            flipped = None if mirrored is None else torch.from_numpy(mirrored).to(self.device)
            embeddings = self.network(to_input(changed, self.spec, self.device))
            share = (epoch + (step + 0.5) / steps) / recipe.epochs
            batch = Batch(embeddings, labels, rows, self.class_weights, share, method_rng, flipped)
            loss_cls = losses.arcface(
                self.method.classified(batch) if compatible else embeddings,
                self.class_weights,
                labels,
                scale=recipe.scale,
                margin=recipe.margin,
            )
            loss = loss_cls
            if compatible and eta > 0:
                loss_comp = self.method.loss(batch)
                loss = loss + eta * loss_comp
                sums[1] += loss_comp.detach()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            sums[0] += loss_cls.detach()
            advance(len(pixels))
        mean_cls, mean_comp = float(sums[0]) / steps, float(sums[1]) / steps
        # The losses were taken before the last step; what came of it shows in an embedding.
        look = next(self.pixels.batches(order[: recipe.batch_size], recipe.batch_size))
        finite = np.isfinite(self._model().embed_pixels(look)).all()
        finite &= bool(torch.isfinite(self.class_weights).all())
        if not finite or not np.isfinite(mean_cls + mean_comp):
            raise UserError(
                f"training diverged in epoch {epoch}: loss or embeddings are not finite; lower lr "
                f"(now {recipe.lr}) or raise lr_warmup_epochs"
            )
        return {
            "epoch": epoch,
            "lr": self.optimizer.param_groups[0]["lr"],  # of the last step
            "eta": eta if compatible else 0.0,
            "loss_cls": mean_cls,
            "loss_comp": mean_comp,
        }

    def _model(self) -> Model:
        assert self.run.recipe.dim is not None
        return Model(self.network, self.run.recipe.architecture, self.spec, self.run.recipe.dim)

    def finished_model(self) -> Model:
        """The trained model with all that is known of it."""
        model = self._model()
        self.network.eval()
        return Model(
            network=model.network,
            architecture=model.architecture,
            input=model.input,
            dim=model.dim,
            class_names=self.pixels.images.class_names,
            class_weights=self.class_weights.detach(),
            training=self.described
            | {
                "data": self.pixels.images.name,
                "unreadable_images": list(self.pixels.unreadable),
                "torch": torch.__version__,
            },
            old_fingerprint=self.run.old_fingerprint,
        )

    def _save_checkpoint(self, folder: Path) -> None:
        tensors: dict[str, Tensor] = {}
        for name, tensor in self.network.state_dict().items():
            tensors[f"network.{name}"] = tensor
        tensors["class_weights"] = self.class_weights.detach()
        for index, parameter in enumerate(self._parameters()):
            buffer = self.optimizer.state[parameter].get("momentum_buffer")
            if buffer is not None:  # there is none at momentum 0
                tensors[f"momentum.{index}"] = buffer
        for name, tensor in self.method.state().items():
            tensors[f"method.{name}"] = tensor
        state = {
            "described": self.described,
            "epochs_done": self.epochs_done,
            "metrics": self.metrics,
        }
        save_tensors(folder / CHECKPOINT_FILE, tensors, {"state": json.dumps(state)})
        write_text(folder / METRICS_FILE, _as_csv(self.metrics))

    def restore(self, checkpoint: _Checkpoint) -> None:
        """Go on from the end of an epoch, to the bit: batches depend on seed and epoch only."""
        tensors = checkpoint.tensors
        self.network.load_state_dict(_with_prefix(tensors, "network."))
        with torch.no_grad():
            self.class_weights.copy_(tensors["class_weights"])
        for index, parameter in enumerate(self._parameters()):
            kept = tensors.get(f"momentum.{index}")
            if kept is not None:
                buffer = torch.empty_like(parameter).copy_(kept)
                self.optimizer.state[parameter]["momentum_buffer"] = buffer
        method_state = _with_prefix(tensors, "method.")
        self.method.load_state({k: v.to(self.device) for k, v in method_state.items()})
        self.epochs_done = checkpoint.epochs_done
        self.metrics = checkpoint.metrics


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _images_per_epoch(images: int, batch_size: int) -> int:
    """Whole batches only: a rest of one or two images would upset batch normalisation."""
    return images // batch_size * batch_size if images >= batch_size else images


def _require_nothing_but_cache(out: Path) -> None:
    """Refuse a folder that holds anything but what a run stopped in its first epoch leaves."""
    others = [p for p in out.iterdir() if p.name != OLD_EMBEDDINGS] if out.is_dir() else []
    if others or out.is_file():
        require_absent(out)


def _read_checkpoint(out: Path) -> _Checkpoint | None:
    path = out / CHECKPOINT_FILE
    if not path.is_file():
        return None
    try:
        with cast(Any, safetensors.safe_open(path, framework="pt")) as file:
            state = json.loads(file.metadata()["state"])
        tensors = safetensors.torch.load_file(path)
    except (OSError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise UserError(f"{path} is damaged ({error}); remove {out} and train anew") from error
    return _Checkpoint(state["described"], state["epochs_done"], state["metrics"], tensors)


def _as_csv(rows: list[dict[str, float]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
