"""What an export has written and measured, in words."""

from typing import Any


def export_text(export: dict[str, Any]) -> str:
    """Return a few lines about an export, from its ``as_json``."""
    agreement = export["agreement"]
    space = ", in the old model's space" if export.get("space") == "old" else ""
    before = "before int8 it " if "loss" in export else ""
    lines = [
        f"{export['file']}: {megabytes(export['bytes'])}{space}; {before}agrees with the model on "
        f"{agreement['images']:,} images, lowest cosine {agreement['lowest']:.7f}"
    ]
    if "loss" in export:
        lines.append(f"int8 ({export['int8']} ranges): {loss_text(export['loss'])}")
        lines += [metric_text(metric) for metric in export["loss"]["metrics"]]
    return "\n".join(lines)


def loss_text(loss: dict[str, Any]) -> str:
    """Return what was searched, and how close the embeddings are."""
    gallery = "the old model's gallery" if loss["gallery"] == "old" else "the exact file's gallery"
    return (
        f"{loss['queries']:,} queries in {gallery}; cosine to the exact embeddings "
        f"{loss['mean_cosine']:.4f} on average, {loss['lowest_cosine']:.4f} at worst; "
        f"{loss['speed']:.2f} times the speed here"
    )


def metric_text(metric: dict[str, Any]) -> str:
    """Return one metric of exact and int8 queries, and the difference in points."""
    exact, int8 = (100 * metric[name] for name in ("exact", "int8"))
    low, high = (100 * end for end in metric["interval"])
    difference = 100 * metric["difference"]
    return (
        f"  {metric['metric']:<10} exact {exact:6.2f} %  int8 {int8:6.2f} %  "
        f"{difference:+.2f} points ({low:+.2f} to {high:+.2f})"
    )


def megabytes(count: int) -> str:
    """Return a number of bytes as megabytes."""
    return f"{count / 1e6:.1f} MB"
