"""The audit of a strategy under central DP: every check, in order."""

from collections.abc import Callable
from functools import partial

from fedsim.arrays import one_thread
from fedsim.audit.adaptive import check_adaptive_clipping
from fedsim.audit.claims import Subject
from fedsim.audit.cohorts import check_cohorts
from fedsim.audit.findings import Finding, collected
from fedsim.audit.game import check_epsilon
from fedsim.audit.noise import check_noise
from fedsim.audit.sums import (
    check_clipping,
    check_denominator,
    check_sensitivity,
    check_weights,
)

MECHANISM_CHECKS: dict[str, Callable[[Subject], list[Finding]]] = {
    "noise": check_noise,
    "clipping": check_clipping,
    "sensitivity": check_sensitivity,
    "denominator": check_denominator,
    "weights": check_weights,
    "cohorts": check_cohorts,
    "adaptive clipping": check_adaptive_clipping,
    "epsilon": check_epsilon,
}


@one_thread()
def audit_mechanism(subject: Subject) -> list[Finding]:
    """Measure everything that is claimed of a strategy, a sampler and a mechanism together.

    Args:
        subject: Makers of the parts, a model that stays as it is, and the claims.

    Returns:
        A finding per check. A check that the parts refuse with an error has failed.
    """
    checks = MECHANISM_CHECKS.items()
    return collected((name, partial(check, subject)) for name, check in checks)
