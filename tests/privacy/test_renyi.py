"""Divergences against dp_accounting's and against sums in 800-digit arithmetic."""

import math
from decimal import Decimal, getcontext, localcontext

import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.rdp import RdpAccountant
from scipy.integrate import quad

from fedsim.privacy.renyi import (
    ORDERS,
    fixed_size_divergences,
    gaussian_divergences,
    poisson_divergences,
)

SMALL_INTEGERS = [2, 3, 5, 8, 12, 13, 15]
SETTINGS = [(1e-4, 0.5), (0.01, 1.0), (0.1216, 17.0), (0.1216, 2100.0), (0.5, 3.0), (0.9, 0.7)]


def at(divergences: np.ndarray, order: float) -> float:
    (place,) = np.flatnonzero(order == ORDERS)
    return float(divergences[place])


@pytest.mark.parametrize(("rate", "sigma"), SETTINGS)
def test_poisson_equals_dp_accounting_at_integer_orders(rate: float, sigma: float) -> None:
    orders = [order for order in SMALL_INTEGERS if order in ORDERS]
    accountant = RdpAccountant(orders)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)))
    found = [at(poisson_divergences(sigma, rate), order) for order in orders]
    usable = [order <= max(3, 60 * sigma**2) for order in orders]
    np.testing.assert_allclose(
        np.array(found)[usable], accountant.rdp[usable], rtol=1e-9, atol=3e-14
    )
    assert (np.array(found) >= accountant.rdp).all()


@pytest.mark.parametrize(("rate", "sigma"), SETTINGS)
@pytest.mark.parametrize("place", [0, 10, 25, 40])
def test_poisson_equals_an_adaptive_integral_at_fractional_orders(
    rate: float, sigma: float, place: int
) -> None:
    order = float(ORDERS[place])
    if order > max(3, 60 * sigma**2):
        pytest.skip("an order that so small a noise has no use for")

    def excess(z: float) -> float:
        """The integrand of E[x^order - 1 - order (x - 1)], whose last part has mean 0."""
        x_minus_1 = rate * math.expm1((2 * z - 1) / (2 * sigma**2))
        density = math.exp(-((z / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
        return density * (math.expm1(order * math.log1p(x_minus_1)) - order * x_minus_1)

    middle = sigma**2 * math.log(1 / rate)
    points = sorted({0.0, min(middle, order), order, -sigma, order + sigma})
    integral, _ = quad(
        excess, -12 * sigma, order + 12 * sigma, points=points, limit=400, epsabs=0, epsrel=1e-9
    )
    expected = math.log1p(integral) / (order - 1)
    found = at(poisson_divergences(sigma, rate), order)
    rounding = 1e-14 * order / (order - 1)
    assert found == pytest.approx(expected, rel=1e-6, abs=2 * rounding)
    assert found >= expected * (1 - 1e-9)


def test_poisson_does_not_fall_with_the_order_and_never_exceeds_the_unsampled() -> None:
    for rate, sigma in SETTINGS:
        divergences = poisson_divergences(sigma, rate)
        usable = max(3, 60 * sigma**2) >= ORDERS
        steps = np.diff(divergences[usable])
        assert (steps >= -1e-12 * divergences[usable][1:] - 2e-14).all()
        assert (divergences <= gaussian_divergences(sigma) * (1 + 1e-12) + 2e-14).all()


@pytest.mark.parametrize(("rate", "sigma"), SETTINGS)
def test_fixed_size_equals_dp_accounting_at_small_orders(rate: float, sigma: float) -> None:
    orders = [order for order in SMALL_INTEGERS if order <= max(3, 60 * sigma**2)]
    accountant = RdpAccountant(orders, NeighboringRelation.REPLACE_ONE)
    members = 100_000
    accountant.compose(
        SampledWithoutReplacementDpEvent(members, round(rate * members), GaussianDpEvent(sigma))
    )
    rate = round(rate * members) / members
    expected = np.minimum(accountant.rdp, np.array(orders) / (2 * sigma**2))
    found = [at(fixed_size_divergences(sigma, rate), order) for order in orders]
    # dp_accounting's own rounding grows to 1e-6 where divergences are tiny.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=3e-14)


def exact_fixed_size(rate: float, sigma: float, order: int) -> float:
    """The bound of Wang et al., with central moments as alternating sums of binomials."""
    with localcontext(getcontext()) as context:
        context.prec = 800
        context.Emax, context.Emin = 10**9, -(10**9)
        inverse = 1 / (2 * Decimal(sigma) ** 2)
        raw = [(i * (i - 1) * inverse).exp() for i in range(order + 2)]
        even = [
            sum(math.comb(2 * k, j) * (-1) ** j * raw[j] for j in range(2 * k + 1))
            for k in range((order + 1) // 2 + 1)
        ]
        total = Decimal(1)
        for i in range(2, order + 1):
            root = (even[i // 2] * even[(i + 1) // 2]).sqrt()
            total += math.comb(order, i) * Decimal(rate) ** i * min(4 * root, 2 * raw[i])
        return float(total.ln() / (order - 1))


@pytest.mark.parametrize(
    ("rate", "sigma", "order_from"), [(0.1216, 37.5, 180), (0.5, 400.0, 100), (0.1216, 5000.0, 100)]
)
def test_fixed_size_is_right_at_large_orders_too(
    rate: float, sigma: float, order_from: int
) -> None:
    # dp_accounting loses the first two to cancellation: it is off by factors of 10 and more.
    order = int(ORDERS[order_from < ORDERS][0])
    expected = min(exact_fixed_size(rate, sigma, order), order / (2 * sigma**2))
    found = at(fixed_size_divergences(sigma, rate), order)
    assert found == pytest.approx(expected, rel=1e-5)
    assert found >= expected
