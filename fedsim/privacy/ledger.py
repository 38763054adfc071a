"""What each user's examples have spent under example-level DP-SGD, over all participations."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.errors import CheckpointError, PrivacyError
from fedsim.privacy.accounting import Accountant, EpsilonPerRound, GaussianRounds

_QUANTILES = (0.5, 0.9, 0.99)


class ExampleLedger:
    """Counts how often each user took part, and tells the epsilon that this makes.

    A participation of a user with n examples is ``local_epochs · ceil(n / batch_size)`` steps; a
    step draws every example with probability q = min(1, batch_size / n), clips its gradient to
    ``max_grad_norm`` and adds Gaussian noise of standard deviation noise_multiplier ·
    max_grad_norm to the sum. All steps of all participations compose. Neighbours add or remove one
    example of that user; nothing is said about the user as a whole.

    Args:
        num_images: Examples of each user, at least 1; shape (users,), of one user or more.
        batch_size: Expected number of examples in a step, at least 1.
        local_epochs: Passes over the examples in a participation, at least 1.
        noise_multiplier: σ, at least 0.
        max_grad_norm: Bound of one example's gradient, above 0.
        delta: δ, above 0 and below 1, the same for every user.
        accountant: "rdp", or the tighter "pld", which takes a tenth of a second for every distinct
            number of examples where "rdp" takes a millisecond.

    Raises:
        PrivacyError: If a setting is out of its range.

    Examples:
        >>> ledger = ExampleLedger(
        ...     np.array([5, 40]), batch_size=10, local_epochs=1, noise_multiplier=1.0,
        ...     max_grad_norm=1.0, delta=1e-5,
        ... )
        >>> ledger.observe([1])
        >>> ledger.observe([1])
        >>> ledger.participations.tolist(), ledger.epsilons().round(2).tolist()
        ([0, 2], [0.0, 6.26])
    """

    def __init__(
        self,
        num_images: npt.NDArray[np.int64],
        *,
        batch_size: int,
        local_epochs: int,
        noise_multiplier: float,
        max_grad_norm: float,
        delta: float,
        accountant: Accountant = "rdp",
    ) -> None:
        for name, value in (("batch_size", batch_size), ("local_epochs", local_epochs)):
            if value < 1:
                raise PrivacyError(
                    f"{name}: expected a whole number of at least 1, found {value}; correct it"
                )
        if not 0 < max_grad_norm < np.inf:
            raise PrivacyError(
                f"max_grad_norm: expected a finite number above 0, found {max_grad_norm}; "
                "correct it"
            )
        self._settings: dict[str, Any] = {
            "batch_size": batch_size,
            "local_epochs": local_epochs,
            "noise_multiplier": noise_multiplier,
            "max_grad_norm": max_grad_norm,
            "delta": delta,
            "accountant": accountant,
        }
        self._sizes, self._size_of_user = np.unique(num_images, return_inverse=True)
        self._most = np.zeros(len(self._sizes), dtype=np.int32)
        self.participations: npt.NDArray[np.int32] = np.zeros(len(num_images), dtype=np.int32)
        self._epsilons: dict[tuple[int, int], float] = {}
        # Finds faults of the settings before the first round.
        self._curve(1, 1)

    def observe(self, cohort: Sequence[int]) -> None:
        """Count one participation for each of these users, given as positions in ``num_images``.

        Raises:
            PrivacyError: If a position is none of a user.
        """
        users = np.asarray(cohort, dtype=np.int64)
        if len(users) and not 0 <= users.min() <= users.max() < len(self.participations):
            raise PrivacyError(
                f"cohort: expected users from 0 to {len(self.participations) - 1}, found "
                f"{users.min()} to {users.max()}; count them with the ledger of their own data"
            )
        np.add.at(self.participations, users, 1)
        np.maximum.at(self._most, self._size_of_user[users], self.participations[users])

    def epsilons(self) -> npt.NDArray[np.float64]:
        """Return every user's epsilon so far, 0 for who never took part; shape (users,)."""
        pairs = np.stack([self._size_of_user, self.participations], axis=1)
        distinct, place = np.unique(pairs, axis=0, return_inverse=True)
        values = [self._epsilon(int(self._sizes[size]), int(times)) for size, times in distinct]
        return np.array(values, dtype=np.float64)[place.reshape(-1)]

    def largest_epsilon(self) -> float:
        """Return the largest of ``epsilons()``: the one that a run may promise to everybody."""
        # More participations never spend less, so of the users with n examples the busiest counts.
        return max(
            self._epsilon(int(n), int(times))
            for n, times in zip(self._sizes, self._most, strict=True)
        )

    def card(self) -> dict[str, Any]:
        """Return the settings, what they rest on, and how epsilon is distributed over users."""
        epsilons = self.epsilons()
        largest = int(np.argmax(epsilons))
        # inverted_cdf takes a value that occurs: between a finite and an infinite one is nothing.
        quantiles = np.quantile(epsilons, _QUANTILES, method="inverted_cdf")
        return {
            "mechanism": "Gaussian noise on the sum of clipped per-example gradients",
            "unit": "example of a user",
            "neighboring": "add_or_remove_one",
            "sampling": "poisson",
            **self._settings,
            "num_users": len(epsilons),
            "num_users_never_drawn": int(np.sum(self.participations == 0)),
            "epsilon_mean": float(epsilons.mean()),
            **{
                f"epsilon_quantile_{quantile:g}": float(value)
                for quantile, value in zip(_QUANTILES, quantiles, strict=True)
            },
            "epsilon_max": float(epsilons[largest]),
            "epsilon_max_num_images": int(self._sizes[self._size_of_user[largest]]),
            "epsilon_max_participations": int(self.participations[largest]),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the counts (a copy) and the settings that they were counted under."""
        return {"participations": self.participations.copy(), **self._settings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` returned.

        Raises:
            CheckpointError: If the counts are of other users or other settings.
        """
        found = {name: state.get(name) for name in self._settings}
        if found != self._settings:
            raise CheckpointError(
                f"example-level ledger: expected settings {self._settings}, found {found}; resume "
                "with the settings that the run was started with"
            )
        counts = np.asarray(state["participations"])
        if counts.shape != self.participations.shape or (counts < 0).any():
            raise CheckpointError(
                f"example-level ledger: expected counts of {len(self.participations)} users, found "
                f"{counts.shape}; resume with the data that the run was started with"
            )
        self.participations[:] = counts
        self._most[:] = 0
        np.maximum.at(self._most, self._size_of_user, self.participations)

    def _epsilon(self, num_images: int, participations: int) -> float:
        if (num_images, participations) not in self._epsilons:
            settings = self._settings
            batches = -(-num_images // settings["batch_size"])
            steps = participations * settings["local_epochs"] * batches
            spent = self._curve(num_images, steps).after(steps)
            self._epsilons[num_images, participations] = spent
        return self._epsilons[num_images, participations]

    def _curve(self, num_images: int, steps: int) -> EpsilonPerRound:
        # Steps still to come are unknown, so curves are made up to the next power of two. That
        # depends on nothing but the pair, and a resumed run prints the same digits.
        settings = self._settings
        return _curve(
            settings["noise_multiplier"],
            1 << max(steps - 1, 0).bit_length(),
            min(settings["batch_size"], num_images),
            num_images,
            settings["delta"],
            settings["accountant"],
        )


@lru_cache(maxsize=256)
def _curve(
    noise_multiplier: float,
    steps: int,
    batch_size: int,
    num_images: int,
    delta: float,
    accountant: Accountant,
) -> EpsilonPerRound:
    rounds = GaussianRounds(noise_multiplier, steps, batch_size, num_images)
    return EpsilonPerRound(rounds, delta, accountant)
