"""Advice as lines of plain text."""

from unibct.advice.advise import Advice
from unibct.advice.costs import Cost
from unibct.methods.table import DEFAULT_METHOD
from unibct.progress import clock


def advice_lines(advice: Advice) -> list[str]:
    """Return the advice as text: the situation, the costs and the commands."""
    scenario, strength, rates = advice.scenario, advice.strength, advice.rates
    old, shared = (
        "?" if count is None else f"{count:,}"
        for count in (scenario.old_classes, scenario.shared_classes)
    )
    old_rate = "stored" if rates.old_forward is None else f"{rates.old_forward:,.0f}"
    names = " or ".join(scenario.names) or "not known"
    lines = [
        f"scenario    {names}: {scenario.why}",
        f"            classes: {old} old, {scenario.new_classes:,} new, {shared} in both",
        f"old model   {strength or 'not measured'}, on {advice.strength_on}",
        f"new model   {advice.recipe}",
        f"measured    on {advice.device}, images/s: reading {rates.reading:,.0f}, old model "
        f"{old_rate}, new model {rates.new_forward:,.0f}, training "
        f"{rates.training:,.0f}",
        "",
        "methods that apply",
    ]
    width = max(len(method.name) for method in advice.methods)
    for method in advice.methods:
        mark = "  (default)" if method.name == DEFAULT_METHOD else ""
        text = method.description + mark if method.applies else f"no: {method.obstacle}"
        lines.append(f"  {method.name:{width}}  {text}")
    for name, cost in advice.costs.items():
        lines += ["", f"{name}: about {clock(cost.seconds)} (estimated) to {cost.what}"]
        lines.append(f"  {_parts(cost)}")
        lines += [f"  $ {command}" for command in advice.commands[name]]
    return [*lines, "", *(f"note: {note}" for note in advice.notes)]


def _parts(cost: Cost) -> str:
    return ", ".join(f"{name} {clock(seconds)}" for name, seconds in cost.parts.items())
