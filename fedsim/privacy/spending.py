"""What a run spends: both epsilons of central DP, and every user's under example-level DP-SGD."""

from dataclasses import dataclass
from typing import Any

import torch

from fedsim.privacy.accounting import Accountant, EpsilonPerRound, GaussianRounds
from fedsim.privacy.central import CentralGaussian
from fedsim.privacy.ledger import ExampleLedger


@dataclass(frozen=True)
class CentralSpending:
    """Central DP, accounted twice.

    Attributes:
        mechanism: What is added.
        as_run: This run: the counted population, the drawn cohort, the noise as added.
        at_noise_cohort: The deployment that it predicts: the noise cohort and its population.
        delta_as_run: Of the first.
        delta_at_noise_cohort: Of the second.
        accountant: Of both.
        deployment_assumed: Whether the second population is an assumption of the user's.
    """

    mechanism: CentralGaussian
    as_run: GaussianRounds
    at_noise_cohort: GaussianRounds
    delta_as_run: float
    delta_at_noise_cohort: float
    accountant: Accountant
    deployment_assumed: bool


class PrivacySpending:
    """Prints epsilons and keeps what they need.

    Args:
        central: Central DP, or None.
        ledger: Of example-level DP-SGD, or None.
    """

    def __init__(self, central: CentralSpending | None, ledger: ExampleLedger | None) -> None:
        self._central, self._ledger = central, ledger
        if central is not None:
            self._as_run = EpsilonPerRound(central.as_run, central.delta_as_run, central.accountant)
            self._at_noise_cohort = EpsilonPerRound(
                central.at_noise_cohort, central.delta_at_noise_cohort, central.accountant
            )

    def observe(self, cohort: list[int]) -> None:
        """Take note of a round's users, as positions in the train split's table."""
        if self._ledger is not None:
            self._ledger.observe(cohort)

    def spent(self, round_num: int) -> dict[str, Any]:
        """Return the epsilons after a round, by the names that they have in the record."""
        spent: dict[str, Any] = {}
        if self._central is not None:
            spent["epsilon_as_run"] = self._as_run.after(round_num)
            spent["epsilon_at_noise_cohort"] = self._at_noise_cohort.after(round_num)
        if self._ledger is not None:
            spent["example_epsilon_max"] = self._ledger.largest_epsilon()
        return spent

    def card(self, num_rounds: int, rounds_done: int) -> dict[str, Any]:
        """Return the privacy card: what was promised to whom, and what it rests on."""
        card: dict[str, Any] = {"num_rounds": num_rounds, "rounds_done": rounds_done}
        if self._central is not None:
            card["central"] = self._central_card(self._central, num_rounds)
        if self._ledger is not None:
            card["example_level"] = {
                **self._ledger.card(),
                "released": "each user's trained arrays, to the server",
                "assumptions": [
                    "how many examples a user holds is public: it sets the sampling rate, the "
                    "number of steps and the scale of the noise",
                    "per-round diagnostics (losses, norms) are not released",
                ],
            }
        if len(card) == 2:
            card["note"] = "no noise was added: this run carries no privacy guarantee"
        return card

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: the ledger; central DP follows from the round number."""
        if self._ledger is None:
            return {}
        state = self._ledger.state_dict()
        return {**state, "participations": torch.from_numpy(state["participations"])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` returned."""
        if self._ledger is not None:
            counts = state["participations"].numpy()
            self._ledger.load_state_dict({**state, "participations": counts})

    def _central_card(self, central: CentralSpending, num_rounds: int) -> dict[str, Any]:
        mechanism, as_run, predicted = central.mechanism, central.as_run, central.at_noise_cohort
        assumptions = [
            "the server is trusted: users send their updates in the clear",
            "per-round diagnostics (norms, losses, shares of clipped users) are not released",
        ]
        if central.deployment_assumed:
            assumptions.append(
                f"epsilon_at_noise_cohort supposes a deployment with {predicted.population_size} "
                f"users and cohorts of {predicted.cohort_size:g}, which this run does not have"
            )
        elif predicted != as_run:
            assumptions.append(
                "epsilon_at_noise_cohort is that of a run with cohorts of "
                f"{predicted.cohort_size:g}; this run drew {as_run.cohort_size:g}"
            )
        return {
            "mechanism": "Gaussian noise on the sum of clipped updates",
            "unit": "user",
            "released": "the global arrays after every round",
            "neighboring": as_run.relation,
            "sampling": as_run.sampling,
            "accountant": central.accountant,
            "population_size": as_run.population_size,
            "cohort_size": as_run.cohort_size,
            "sampling_rate": as_run.sampling_rate,
            "noise_cohort_size": mechanism.noise_cohort_size,
            "num_rounds": num_rounds,
            "clipping_norm": mechanism.clipping_norm,
            "sensitivity": mechanism.sensitivity,
            "noise_multiplier": mechanism.noise_multiplier,
            "noise_multiplier_as_run": mechanism.noise_multiplier_as_run,
            "noise_stddev_sum": mechanism.noise_stddev_sum,
            "noise_stddev_mean": mechanism.noise_stddev_mean,
            "delta_as_run": central.delta_as_run,
            "epsilon_as_run": self._as_run.after(num_rounds),
            "deployment": {
                "assumed": central.deployment_assumed,
                "population_size": predicted.population_size,
                "cohort_size": predicted.cohort_size,
            },
            "delta_at_noise_cohort": central.delta_at_noise_cohort,
            "epsilon_at_noise_cohort": self._at_noise_cohort.after(num_rounds),
            "assumptions": assumptions,
        }
