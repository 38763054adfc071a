"""Rényi divergences of one Gaussian round, for both ways of drawing a cohort.

They are computed here and not by ``dp_accounting``: its moments of fractional order are far too
large when the sampling rate is near 1/2 and do not converge below order 2, where large epsilons are
decided, and its moments without replacement are lost to cancellation at large orders, where small
epsilons are decided. At small integer orders the two agree to 1e-12.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ORDERS: Floats = np.concatenate(
    [
        1 + np.geomspace(0.01, 0.9, 20),
        np.arange(2, 12, 0.25),
        np.unique(np.round(np.geomspace(12, 65536, 80))),
    ]
)

_LARGEST_FIXED_SIZE_ORDER = 4096
# The logarithm of a moment of order α is off by some α · 1e-16, which may be more than the
# divergence. A hundred times that keeps every divergence at or above the truth; over 10,000 rounds
# it costs 1e-8 of epsilon at order 1.01 and 1e-10 at larger ones.
_ROUNDING: Floats = 1e-14 * ORDERS / (ORDERS - 1)


def gaussian_divergences(noise_multiplier: float) -> Floats:
    """Return the divergence of one Gaussian release at each of ``ORDERS``: α / (2σ²)."""
    divergences: Floats = ORDERS / (2 * noise_multiplier**2)
    return divergences


def poisson_divergences(noise_multiplier: float, sampling_rate: float) -> Floats:
    """Return the divergences of one Poisson-sampled Gaussian release under add-or-remove-one.

    With the likelihood ratio L(z) = exp((2z - 1) / (2σ²)) the divergence of order α is

        log E[(1 - q + q L(z))^α] / (α - 1),   z ~ N(0, σ²)

    The integral is a sum over equal steps, which converges geometrically because the integrand is
    analytic within πσ² of the real line and falls off like a Gaussian.

    Args:
        noise_multiplier: σ, at least 0.01.
        sampling_rate: q, above 0 and below 1.

    Returns:
        An array like ``ORDERS``. Orders that are too large to matter for so small a σ get the
        divergence of the unsampled release, which is an upper bound.

    References:
        Mironov, Talwar, Zhang (2019), Rényi differential privacy of the sampled Gaussian mechanism,
        theorems 4 and 5.
    """
    divergences = gaussian_divergences(noise_multiplier)
    usable = np.flatnonzero(_matters(noise_multiplier))
    z, log_weight = _nodes(noise_multiplier, ORDERS[usable[-1]], spread=9)
    log_ratio = np.logaddexp(
        np.log1p(-sampling_rate), np.log(sampling_rate) + _log_likelihood_ratio(z, noise_multiplier)
    )
    for i in usable:
        # Beyond α + 9σ the integrand of order α has nothing left.
        end = np.searchsorted(z, ORDERS[i] + 9 * noise_multiplier)
        log_moment = _log_sum(ORDERS[i] * log_ratio[:end] + log_weight[:end])
        divergences[i] = min(divergences[i], max(log_moment, 0.0) / (ORDERS[i] - 1))
    return divergences * (1 + 1e-14) + _ROUNDING


def fixed_size_divergences(noise_multiplier: float, sampling_rate: float) -> Floats:
    """Return bounds on the divergences of a Gaussian release on a sample of fixed size.

    The sample is drawn without replacement and the neighbours replace one member. With
    m_k = E[(L(z) - 1)^k], z ~ N(0, σ²), the divergence of an integer order α is at most

        log(1 + Σ_{i=2..α} C(α, i) q^i min(4 √(m_{2⌊i/2⌋} m_{2⌈i/2⌉}), 2 exp(i (i - 1) / (2σ²))))
        / (α - 1)

    and never more than that of the unsampled release (Rényi divergence is jointly quasi-convex).

    Args:
        noise_multiplier: σ, the noise's standard deviation over the sensitivity under
            replace-one, which is **twice** the clipping norm; at least 0.01.
        sampling_rate: q, sample over population, above 0 and below 1.

    Returns:
        An array like ``ORDERS``.

    References:
        Wang, Balle, Kasiviswanathan (2019), Subsampled Rényi differential privacy and analytical
        moments accountant, theorem 27 in the longer version.
    """
    divergences = gaussian_divergences(noise_multiplier)
    usable = np.flatnonzero(
        _matters(noise_multiplier)
        & (ORDERS >= 2)
        & (ORDERS <= _LARGEST_FIXED_SIZE_ORDER)
        & (np.round(ORDERS) == ORDERS)
    )
    i = np.arange(2, int(ORDERS[usable[-1]]) + 1)
    log_even = _log_even_moments(noise_multiplier, (i[-1] + 1) // 2)
    log_terms = np.minimum(
        np.log(4) + (log_even[i // 2] + log_even[(i + 1) // 2]) / 2,
        np.log(2) + i * (i - 1) / (2 * noise_multiplier**2),
    )
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, i[-1] + 1)))])
    log_terms += i * np.log(sampling_rate) - log_factorial[i]
    for j in usable:
        order = int(ORDERS[j])
        log_falling = log_factorial[order] - log_factorial[order - i[: order - 1]]
        log_moment = np.logaddexp(0.0, _log_sum(log_terms[: order - 1] + log_falling))
        divergences[j] = min(divergences[j], log_moment / (order - 1))
    return divergences * (1 + 1e-14) + _ROUNDING


def _log_even_moments(noise_multiplier: float, count: int) -> Floats:
    """Return log E[(L(z) - 1)^(2k)] for k = 0 to ``count``; even powers don't cancel."""
    largest = 2 * count
    z, log_weight = _nodes(noise_multiplier, float(largest), spread=9 + largest**0.5)
    exponent = _log_likelihood_ratio(z, noise_multiplier)
    with np.errstate(divide="ignore"):  # L = 1 at z = 1/2: log 0 is -inf, as it should be
        log_distance = np.maximum(exponent, 0) + np.log(-np.expm1(-np.abs(exponent)))
    moments = [_log_sum(2 * k * log_distance + log_weight) for k in range(1, count + 1)]
    return np.array([0.0, *moments])


def _log_sum(logarithms: Floats) -> float:
    """Return log Σ exp(logarithms)."""
    largest = logarithms.max()
    return float(largest + np.log(np.exp(logarithms - largest).sum()))


def _log_likelihood_ratio(z: Floats, noise_multiplier: float) -> Floats:
    return (2 * z - 1) / (2 * noise_multiplier**2)


def _matters(noise_multiplier: float) -> npt.NDArray[np.bool_]:
    """Tell which of ``ORDERS`` can be the best one.

    From order 2σ² log(1 / q) on sampling hardly helps, and without it the best order is a small
    multiple of σ.
    """
    return max(3.0, 60 * noise_multiplier**2) >= ORDERS


def _nodes(noise_multiplier: float, largest_order: float, spread: float) -> tuple[Floats, Floats]:
    """Return the points of a sum for E[f(z)], z ~ N(0, σ²), and the logarithms of their weights.

    The points reach ``spread`` standard deviations below 0 and above the largest order, around
    which the mass of a moment lies.
    """
    step = min(noise_multiplier / 8, noise_multiplier**2 / 2)
    z = np.arange(-spread * noise_multiplier, largest_order + spread * noise_multiplier, step)
    log_weight = -((z / noise_multiplier) ** 2) / 2
    return z, log_weight + np.log(step / (noise_multiplier * np.sqrt(2 * np.pi)))
