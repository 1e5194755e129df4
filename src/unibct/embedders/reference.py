"""How an embedder is written on the command line: ``kind:place?option=value&option=value``."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from unibct.errors import UserError


@dataclass(frozen=True)
class Reference:
    """An embedder's reference, taken apart.

    Attributes:
        text: as it was written.
        kind: what comes before the colon; empty if it is to be recognised from the place.
        place: a path, or the name of a Python object.
        options: what comes after the question mark.
    """

    text: str
    kind: str
    place: str
    options: Mapping[str, str]

    @property
    def path(self) -> Path:
        """The place as a path."""
        return Path(self.place)

    def require_options(self, known: Collection[str]) -> None:
        """Refuse options that the kind does not have."""
        unknown = [name for name in self.options if name not in known]
        if unknown:
            choice = f"it takes {', '.join(known)}" if known else "it takes none"
            raise UserError(f"{self.text}: unknown option {unknown[0]!r}; {choice}")


def parse_reference(text: str, kinds: Collection[str]) -> Reference:
    """Take a reference apart. What exists as a path is a path, whatever it contains."""
    if Path(text).exists():
        return Reference(text, "", text, {})
    kind, colon, rest = text.partition(":")
    if not colon or kind not in kinds:
        kind, rest = "", text
    if rest and Path(rest).exists():
        return Reference(text, kind, rest, {})
    place, _, query = rest.partition("?")
    if not place:
        raise UserError(f"{text} names no file: write {kind}:PLACE")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise UserError(f"{text}: write options as ?name=value&name=value") from error
    return Reference(text, kind, place, dict(pairs))


def parse_size(text: str, option: str = "size") -> tuple[int, int]:
    """Return (height, width) from ``112`` or ``128x64``."""
    sides = text.lower().split("x")
    if not 1 <= len(sides) <= 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise UserError(f"{option}={text}: write a number of pixels, or HEIGHTxWIDTH")
    return int(sides[0]), int(sides[-1])


def parse_numbers(text: str, option: str, count: int) -> tuple[float, ...]:
    """Return ``count`` numbers; a single one stands for all of them."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"{option}={text}: write numbers with commas between them") from error
    if len(numbers) not in (1, count):
        raise UserError(f"{option}={text}: write one number, or {count} with commas between them")
    return numbers if len(numbers) == count else numbers * count
