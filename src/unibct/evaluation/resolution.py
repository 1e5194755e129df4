"""Which false accept rates a number of classes can measure."""

from unibct.errors import UserError

HEADLINE_FAR = 1e-4
REPORTED_FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
_CLASS_PAIRS_NEEDED = 30  # Doddington's rule of 30 errors, see carried_fars


def carried_fars(classes: int) -> list[float]:
    """Return the reported false accept rates that so many classes can measure.

    Thirty independent errors measure a rate to about ±30 % (Doddington's rule). All impostor
    pairs of two look-alike classes score high together, so class pairs are counted.
    """
    return [far for far in REPORTED_FARS if _is_carried(far, classes)]


def headline_far(classes: int, wanted: float = HEADLINE_FAR) -> float:
    """Return ``wanted`` if the classes can measure it, else the smallest larger rate they can."""
    if not 0 < wanted <= 1:
        raise UserError(f"a false accept rate lies in (0, 1], not {wanted}")
    if _is_carried(wanted, classes):
        return wanted
    larger = (far for far in carried_fars(classes) if far > wanted)
    return next(larger, max(wanted, REPORTED_FARS[-1]))


def far_note(far: float, wanted: float, classes: int, unit: str = "classes") -> str | None:
    """Say what a reader must know about the headline's rate if it is not the one asked for.

    Args:
        far: the rate that is reported.
        wanted: the rate that was asked for.
        classes: how many there are.
        unit: what they are called: classes, or subjects.
    """
    if not _is_carried(far, classes):
        return (
            f"{classes} {unit} are too few to measure {tar_name(far)} well: "
            "25 are needed for TAR@1e-1, 78 for TAR@1e-2, 246 for TAR@1e-3"
        )
    if far == wanted:
        return None
    return (
        f"{tar_name(far)} instead of {tar_name(wanted)}: "
        f"{classes} {unit} cannot measure a smaller false accept rate"
    )


def tar_name(far: float) -> str:
    """Return what a table calls the TAR at ``far``, such as TAR@1e-3."""
    power = f"{far:.0e}".replace("e-0", "e-")
    return f"TAR@{power if float(power) == far and far < 1 else f'{far:g}'}"


def _is_carried(far: float, classes: int) -> bool:
    return far * classes * (classes - 1) / 2 + 1e-9 >= _CLASS_PAIRS_NEEDED
