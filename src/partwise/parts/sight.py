"""What a query may look at."""

from collections.abc import Callable

from torch import Tensor


class Sight:
    """Which keys a query may look at, and what positions add to its score."""

    def __init__(
        self,
        make: Callable[[], Tensor],
        everything: bool = False,
        triangle: bool = False,
        aligned: bool = False,
    ) -> None:
        self.make = make
        self.made: Tensor | None = None
        self.everything = everything  # every query sees every key, and nothing is added
        self.triangle = triangle  # nothing else than the lower triangle of a square
        self.aligned = aligned  # the same with more keys before: the last query sees all, each one before it one less

    def bias(self) -> Tensor | None:
        """(T, S), (H, T, S), (B, H or 1, T, S) or (B, 1, 1, S) added to the scores: -inf where a query may not look."""
        if self.everything:
            return None
        if self.made is None:
            self.made = self.make()
        return self.made
