"""The scale of the loss in half precision."""

from dataclasses import dataclass


@dataclass
class LossScale:
    """The factor that keeps half-precision gradients from vanishing; found by trial."""

    value: float = 2.0**16
    good_steps: int = 0

    def update(self, finite: bool) -> None:
        """Halve it after a step whose gradients overflowed, double it after 2000 good ones."""
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.value = max(self.value / 2, 1.0)
        elif self.good_steps == 2000:
            self.value, self.good_steps = min(self.value * 2, 2.0**24), 0
