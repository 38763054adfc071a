"""What a check found, and the bounds beyond which a measurement is no accident."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from fedsim.errors import FedsimError, first_line

Verdict = Literal["pass", "FAIL", "not applicable"]

SIGMAS = 6.0
"""Standard deviations that a measurement may be off: by chance one in 500 million is further."""

_EXPONENT = SIGMAS**2 / 2  # exp(-18): the same odds, for sums of squares


@dataclass(frozen=True)
class Finding:
    """One row of an audit.

    Attributes:
        name: What was checked.
        claimed: What should be the case.
        measured: What is.
        verdict: Whether the two agree.
        explanation: On failure, what it means; where a check does not apply, why.
    """

    name: str
    claimed: str
    measured: str
    verdict: Verdict
    explanation: str = ""


def judged(name: str, claimed: str, measured: str, passed: bool, fault: str) -> Finding:
    """Return a finding that passes, or fails with an explanation."""
    return Finding(name, claimed, measured, "pass" if passed else "FAIL", "" if passed else fault)


def not_applicable(name: str, reason: str) -> Finding:
    """Return a finding that says why there is none."""
    return Finding(name, "", "", "not applicable", reason)


def collected(checks: Iterable[tuple[str, Callable[[], list[Finding]]]]) -> list[Finding]:
    """Run named checks in order; one that is refused by what it audits has failed."""
    findings: list[Finding] = []
    for name, check in checks:
        try:
            findings += check()
        except FedsimError as error:
            findings.append(
                judged(name, "rounds that can be run", "an error", False, first_line(error))
            )
    return findings


def within_sigmas(measured: float, expected: float, stddev: float) -> bool:
    """Return whether a number is within six of its estimator's standard deviations.

    Examples:
        >>> within_sigmas(1.05, 1.0, 0.01), within_sigmas(1.07, 1.0, 0.01)
        (True, False)
    """
    return abs(measured - expected) <= SIGMAS * stddev + 1e-9 * abs(expected)


def chi_square_bounds(degrees: float, tests: int = 1) -> tuple[float, float]:
    """Return bounds that a chi-square leaves, on either side, with chance exp(-18) over all tests.

    Laurent and Massart 2000, lemma 1. For many degrees they are six standard deviations wide; for
    few the lower one is negative, since a sum of a few squares may well be almost nothing.

    Args:
        degrees: Degrees of freedom.
        tests: How many sums of squares are compared with such bounds.

    Examples:
        >>> low, high = chi_square_bounds(200_000)
        >>> round(low / 200_000, 3), round(high / 200_000, 3)
        (0.981, 1.019)
    """
    exponent = _EXPONENT + math.log(tests)
    spread = 2 * math.sqrt(degrees * exponent)
    return degrees - spread, degrees + spread + 2 * exponent


def figure(value: float) -> str:
    """Format a number for a table.

    Examples:
        >>> figure(0.0456789), figure(20.0)
        ('0.04568', '20')
    """
    return f"{value:.4g}"
