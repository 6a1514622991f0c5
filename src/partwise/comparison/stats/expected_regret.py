"""The expected squared regret of the value with the lowest mean loss, by quadrature."""

import math
from functools import lru_cache

import numpy as np
from scipy import special

LOG2_DIRECTIONS = 14


def mean_squared_regret(losses: np.ndarray) -> float:
    """E[(redrawn mean of the chosen value - lowest redrawn mean)^2], for losses of shape `[n_values, n_seeds]`.

    The redrawn means are normal around the measured ones, with the covariance of the means over the seeds. The integral over
    the distance from the measured means is exact in each of 16,384 fixed directions, which a Sobol sequence spreads evenly:
    with four seeds the square root is right within 0.1%.
    """
    n_values, n_seeds = losses.shape
    if n_values < 2 or n_seeds < 2:
        return 0.0
    means = losses.mean(axis=1)
    lead = means[means.argmin()] - means  # of the chosen value; a regret is positive once noise outweighs it
    noise = (losses[means.argmin()] - losses) @ _contrasts(n_seeds) / math.sqrt(n_seeds * (n_seeds - 1))
    slopes = _directions(n_seeds - 1) @ noise.T
    return float(np.mean(_over_distance(lead, slopes, n_seeds - 1)))


def _over_distance(lead: np.ndarray, slopes: np.ndarray, dims: int) -> np.ndarray:
    """The mean of `max(lead + slope * r)^2` over a distance r of the chi distribution, `[n_directions]`.

    Each value has the lowest loss over one interval of r: lines of lower slope are above it before, steeper ones after.
    """
    steeper = slopes[:, :, None] - slopes[:, None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = (lead[None, :] - lead[:, None]) / steeper
    start = np.where(steeper > 0, crossing, 0.0).max(axis=2).clip(0.0)
    end = np.where(steeper < 0, crossing, np.inf).min(axis=2)
    active = (end > start) & (slopes > 0)
    start, slope, end = start[active], slopes[active], np.maximum(end, start)[active]
    offset = np.broadcast_to(lead, slopes.shape)[active]
    parts = np.zeros(slopes.shape)
    parts[active] = (
        offset**2 * _moment(0, start, end, dims)
        + 2 * offset * slope * _moment(1, start, end, dims)
        + slope**2 * _moment(2, start, end, dims)
    )
    return parts.sum(axis=1)


def _moment(power: int, start: np.ndarray, end: np.ndarray, dims: int) -> np.ndarray:
    """The integral of `r^power` from start to end over the chi distribution with `dims` degrees of freedom."""
    shape = (dims + power) / 2
    whole = 2 ** (power / 2) * special.gamma(shape) / special.gamma(dims / 2)
    return whole * (special.gammaincc(shape, start**2 / 2) - special.gammaincc(shape, end**2 / 2))


@lru_cache
def _directions(dims: int) -> np.ndarray:
    """Fixed unit vectors, `[n_directions, dims]`."""
    from scipy.stats import qmc  # takes most of a second, and few comparisons are tuned

    points = qmc.Sobol(dims, scramble=False).random_base2(LOG2_DIRECTIONS)
    normal = special.ndtri(points + 0.5 / 2**LOG2_DIRECTIONS)
    return normal / np.linalg.norm(normal, axis=1, keepdims=True)


@lru_cache
def _contrasts(n_seeds: int) -> np.ndarray:
    """Helmert's contrasts between seeds as orthonormal columns, `[n_seeds, n_seeds - 1]`."""
    columns = [[1.0] * i + [-float(i)] + [0.0] * (n_seeds - i - 1) for i in range(1, n_seeds)]
    return np.array([np.array(column) / np.linalg.norm(column) for column in columns]).T
