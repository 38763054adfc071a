"""The privacy loss of one Poisson-sampled Gaussian round, composed over any number of rounds.

``dp_accounting`` makes the distribution of one round. It would compose it afresh for each number of
rounds, in tens of milliseconds; here the Fourier transform is kept, so that epsilon can be printed
after every round of a run at about a millisecond each.
"""

import math

import numpy as np
import numpy.typing as npt
from dp_accounting.pld import privacy_loss_distribution

Floats = npt.NDArray[np.float64]

SMALLEST_DELTA = 1e-10

_TAIL = 1e-15  # mass of a composed loss that may lie outside the window that is computed
_FINEST, _COARSEST = 1e-5, 1e-2
_MOST_POINTS_PER_ROUND = 20_000
_MOST_POINTS_PER_EPSILON = 200_000
_LARGEST_STEP = 100.0  # dp_accounting takes the exponential of the step


def loss_grid(
    epsilon: float, noise_multiplier: float, sampling_rate: float, num_rounds: int
) -> float:
    """Return the step of the grid on which losses are put.

    A grid is always on the safe side, but a coarse one passes far too much noise: putting one
    round's loss on a grid adds a variance that grows with the square of (step · √rounds / ε). At
    ε / 2000 that costs 0.2 % of epsilon over 5,000 rounds, and longer runs get a finer step in
    proportion. The step stays within [1e-5, 1e-2] otherwise, except where a single round (large
    losses of rare users) or epsilon itself would need too many points.

    Args:
        epsilon: About the epsilon that will come out, above 0.
        noise_multiplier: σ.
        sampling_rate: q.
        num_rounds: Rounds composed.

    Examples:
        >>> loss_grid(2.0, 17.4, 0.12, 5000)
        0.001
    """
    step = min(max(epsilon / 2000, _FINEST), _COARSEST) * min(1.0, math.sqrt(5000 / num_rounds))
    # Ten standard deviations on both sides hold all but e^-50 of a round's mass.
    reach = math.log(sampling_rate) + (2 * (1 + 10 * noise_multiplier) - 1) / (
        2 * noise_multiplier**2
    )
    width = float(np.logaddexp(math.log1p(-sampling_rate), reach)) - math.log1p(-sampling_rate)
    step = max(step, width / _MOST_POINTS_PER_ROUND, epsilon / _MOST_POINTS_PER_EPSILON)
    return min(step, _LARGEST_STEP)


class PoissonLoss:
    """Epsilon of a Poisson-sampled Gaussian mechanism under add-or-remove-one, for any rounds.

    Args:
        noise_multiplier: σ, above 0.
        sampling_rate: q, above 0 and below 1.
        step: Step of the grid of losses; any value gives an upper bound on epsilon.

    References:
        Koskela, Jälkö, Honkela (2020), Computing tight differential privacy guarantees using FFT;
        Doroshenko et al. (2022), Connect the dots (the grid's distribution of one round).
    """

    def __init__(self, noise_multiplier: float, sampling_rate: float, step: float) -> None:
        one_round = privacy_loss_distribution.from_gaussian_mechanism(
            noise_multiplier, value_discretization_interval=step, sampling_prob=sampling_rate
        )
        # The losses of removing a member and of adding one: neither bounds the other in general.
        # dp_accounting has no public way to them.
        self._directions = [
            _GridLoss(pmf._probs, pmf._lower_loss, pmf._infinity_mass, step)
            for pmf in (
                one_round._pmf_remove.to_dense_pmf(),
                one_round._pmf_add.to_dense_pmf(),
            )
        ]

    def epsilon(self, num_rounds: int, delta: float) -> float:
        """Return epsilon at ``delta``, at least ``SMALLEST_DELTA``, after ``num_rounds`` ≥ 1."""
        return max(direction.epsilon(num_rounds, delta) for direction in self._directions)


class _GridLoss:
    """A distribution of losses (lowest + k) · step, k = 0 to len(probs) - 1, or infinite."""

    def __init__(self, probs: Floats, lowest: int, infinity_mass: float, step: float) -> None:
        self._probs = probs
        self._lowest = lowest
        self._infinity_mass = infinity_mass
        self._step = step
        self._log_spectra: dict[int, npt.NDArray[np.complex128]] = {}
        k = np.arange(len(probs))
        deviation = math.sqrt(max(float(probs @ (k - probs @ k) ** 2), 1e-6))
        # The best orders of Chernoff's bound after 1 to 100,000 rounds, if the loss were Gaussian,
        # and smaller ones for a loss that is rare and large.
        best = math.sqrt(2 * math.log(2 / _TAIL)) / deviation
        self._orders = np.geomspace(min(best / 300, 0.1 / len(probs)), best, 40)
        self._log_mgf_above = _log_mgf(probs, self._orders)
        self._log_mgf_below = _log_mgf(probs, -self._orders)

    def epsilon(self, num_rounds: int, delta: float) -> float:
        """Return the smallest ε ≥ 0 with E[max(0, 1 - exp(ε - loss))] ≤ delta."""
        losses, probs = self._composed(num_rounds)
        # What was cut off counts as infinite loss; so does what rounding may have lost in the
        # transforms, which was seen to reach 1e-17 of delta for each round.
        infinity_mass = -math.expm1(num_rounds * math.log1p(-self._infinity_mass))
        infinity_mass += _TAIL + 1e-13 + 2e-17 * num_rounds
        above = infinity_mass + np.cumsum(probs[::-1])[::-1]
        if infinity_mass >= delta:
            return math.inf
        over = np.flatnonzero(above > delta)
        if len(over) == 0:
            return 0.0
        last = over[-1]
        # δ(ε) is the largest of above[i] - exp(ε) Σ_{j ≥ i} probs[j] exp(-loss[j]) over i, so ε is
        # the largest of their roots; losses are taken relative to losses[last] against underflow.
        shrunk = probs * np.exp(np.minimum(losses[last] - losses, 700.0))
        below = np.cumsum(shrunk[::-1])[::-1]
        roots = np.log((above[: last + 1] - delta) / below[: last + 1])
        return max(0.0, float(losses[last] + roots.max()))

    def _composed(self, num_rounds: int) -> tuple[Floats, Floats]:
        """Return the losses that all but ``_TAIL`` of the finite mass lies on, and their masses."""
        slack = math.log(2 / _TAIL)
        low = float(np.max(-(num_rounds * self._log_mgf_below + slack) / self._orders))
        high = float(np.min((num_rounds * self._log_mgf_above + slack) / self._orders))
        first = max(0, math.floor(low))
        last = min(num_rounds * (len(self._probs) - 1), math.ceil(high))
        length = 1 << (max(last - first + 1, len(self._probs)) - 1).bit_length()
        wrapped = np.fft.irfft(np.exp(num_rounds * self._log_spectrum(length)), length)
        probs = np.maximum(np.roll(wrapped, -(first % length))[: last - first + 1], 0.0)
        places = np.arange(first, last + 1, dtype=np.float64)
        losses = self._step * (num_rounds * self._lowest + places)
        return losses, probs

    def _log_spectrum(self, length: int) -> npt.NDArray[np.complex128]:
        """Return the logarithm of the transform, kept: a run needs about ten lengths."""
        if length not in self._log_spectra:
            spectrum = np.fft.rfft(self._probs, length)
            spectrum[spectrum == 0] = 1e-300
            self._log_spectra[length] = np.log(spectrum)
        return self._log_spectra[length]


def _log_mgf(probs: Floats, orders: Floats) -> Floats:
    """Return log Σ_k probs[k] exp(order · k) for each order."""
    with np.errstate(divide="ignore"):  # log 0 is -inf, as it should be
        exponents = np.outer(orders, np.arange(len(probs))) + np.log(probs)
    largest = exponents.max(axis=1)
    logarithms: Floats = largest + np.log(np.exp(exponents - largest[:, None]).sum(axis=1))
    return logarithms
