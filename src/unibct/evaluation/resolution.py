"""Which false accept rates a number of classes can measure."""

import math

from unibct.errors import UserError

HEADLINE_FAR = 1e-4
REPORTED_FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
_CLASS_PAIRS_NEEDED = 30  # Doddington's rule of 30 errors, see carried_fars


def carried_fars(classes: int) -> list[float]:
    """Return those of the reported false accept rates that this number of classes can measure.

    Thirty independent errors measure a rate to about ±30 % (Doddington's rule). If two classes
    look alike, all their impostor pairs score high together, so class pairs are counted.
    """
    return [far for far in REPORTED_FARS if _is_carried(far, classes)]


def headline_far(classes: int, wanted: float | None = None) -> float:
    """Return the rate that a user wants, or the smallest of 1e-4, … that the classes can measure.

    Args:
        classes: how many there are.
        wanted: taken as it is, even if the classes cannot measure it well; ``far_note`` warns.
    """
    if wanted is not None:
        if not 0 < wanted <= 1:
            raise UserError(f"a false accept rate lies in (0, 1], not {wanted}")
        return wanted
    carried = (far for far in carried_fars(classes) if far >= HEADLINE_FAR)
    return next(carried, REPORTED_FARS[-1])


def far_note(far: float, wanted: float | None, classes: int, what: str = "classes") -> str | None:
    """Say what a reader must know about the headline's rate, if anything.

    Args:
        far: the rate in use.
        wanted: the rate that the user asked for.
        classes: how many there are.
        what: what they are called.
    """
    if not _is_carried(far, classes):
        return (
            f"{classes} {what} are too few to measure {tar_name(far)} well (look at its interval): "
            f"{_needed(far)} are needed"
        )
    if wanted is not None or far == HEADLINE_FAR:
        return None
    return (
        f"{tar_name(far)} instead of {tar_name(HEADLINE_FAR)}: "
        f"{classes} {what} cannot measure a smaller false accept rate"
    )


def tar_name(far: float) -> str:
    """Return what a table calls the TAR at ``far``, such as TAR@1e-3."""
    return f"TAR@{rate_name(far)}"


def rate_name(far: float) -> str:
    """Return how a rate is written, such as 1e-3."""
    power = f"{far:.0e}".replace("e-0", "e-")
    return power if float(power) == far and far < 1 else f"{far:g}"


def _needed(far: float) -> int:
    """Return how many classes measure a rate."""
    return math.ceil((1 + math.sqrt(1 + 8 * _CLASS_PAIRS_NEEDED / far)) / 2 - 1e-9)


def _is_carried(far: float, classes: int) -> bool:
    return far * classes * (classes - 1) / 2 + 1e-9 >= _CLASS_PAIRS_NEEDED
