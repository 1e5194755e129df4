"""How blended weights were chosen, in words."""

from unibct.evaluation.weight_choice import WeightChoice


def weight_choice_text(choice: WeightChoice) -> str:
    """Return a table of all shares that were tried, the chosen one marked."""
    lines = [
        f"top-1 of old queries in the old gallery: {100 * choice.old_self:.2f} %",
        "share of the new weights   cross test   new self test   mean reciprocal rank",
    ]
    for one in choice.tried:
        mark = "  chosen" if one.alpha == choice.alpha else ""
        shares = f"{100 * one.cross:10.2f} % {100 * one.new_self:13.2f} %"
        lines.append(f"{one.alpha:24g} {shares} {one.mean_reciprocal_rank:22.4f}{mark}")
    lines.append("chosen is the highest mean reciprocal rank of the cross test")
    return "\n".join(lines)
