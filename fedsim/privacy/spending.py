"""What a run spends: both epsilons of central DP, and every user's under example-level DP-SGD."""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import torch

from fedsim.privacy.accounting import Accountant, EpsilonPerRound, GaussianRounds
from fedsim.privacy.central import CentralGaussian
from fedsim.privacy.ledger import ExampleLedger

_LARGE_DELTA = 0.01
_OF_SEED = (
    "a function of the run's seed, so that runs can be repeated: it hides nothing from those who "
    "know the seed"
)
_SECRET = (
    "drawn, as the cohorts are, from a secret that the server alone holds: it can't be made again "
    "from the seed"
)
_OF_SITES = (
    "drawn at each user's site from its operating system, as the batches are, and kept by nobody: "
    "it can't be made again"
)
_NOT_RELEASED = "per-round diagnostics (losses, norms) are not released, and no strategy uses them"
_TOLD_BY_SITES = (
    "a site tells the server how many of all its images have each label, and nothing else without "
    "noise; what it is asked again because an answer was lost is not counted twice"
)


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
        budget: What the second epsilon may reach at most; None for no bound.
        deployment_assumed: Whether the second population is an assumption of the user's.
        partition: How images are dealt to users (the method of ``data.partition``).
    """

    mechanism: CentralGaussian
    as_run: GaussianRounds
    at_noise_cohort: GaussianRounds
    delta_as_run: float
    delta_at_noise_cohort: float
    accountant: Accountant
    budget: float | None
    deployment_assumed: bool
    partition: str

    def unmet_assumptions(self) -> list[str]:
        """Return what the epsilons suppose and this run does not have."""
        return [*self._unmet_by_users(), *self._unmet_by_cohort(), *self._unmet_by_delta()]

    def _unmet_by_delta(self) -> list[str]:
        if self.delta_as_run < _LARGE_DELTA:
            return []
        return [
            f"delta as run is {self.delta_as_run:.2g}, the chance that nothing is promised: with "
            f"{self.as_run.population_size} users epsilon_as_run says little"
        ]

    def _unmet_by_users(self) -> list[str]:
        if self.partition == "by_user":
            return []
        if self.partition == "file":
            return [
                "users are those of data.partition.path: epsilon protects people only if all "
                "images of each are one user's there"
            ]
        return [
            f"users were made up by data.partition ({self.partition}): epsilon protects them, and "
            "not the people whose images they hold"
        ]

    def _unmet_by_cohort(self) -> list[str]:
        predicted, as_run = self.at_noise_cohort, self.as_run
        if self.deployment_assumed:
            return [
                f"epsilon_at_noise_cohort supposes a deployment with {predicted.population_size} "
                f"users and cohorts of {predicted.cohort_size:g}; this run has "
                f"{as_run.population_size} and {as_run.cohort_size:g}"
            ]
        if predicted != as_run:
            return [
                f"epsilon_at_noise_cohort supposes cohorts of {predicted.cohort_size:g}; this run "
                f"draws {as_run.cohort_size:g}"
            ]
        return []


class PrivacySpending:
    """Prints epsilons and keeps what they need.

    Args:
        central: Central DP, or None.
        ledger: Of example-level DP-SGD, or None.
        noise_of_sites: The ledger's noise is not a function of the seed.
        steps_per_epoch: Of the pooled baseline, whose rounds are epochs and which releases the
            model after every step; None for federated rounds.
    """

    def __init__(
        self,
        central: CentralSpending | None,
        ledger: ExampleLedger | None,
        *,
        noise_of_sites: bool = False,
        steps_per_epoch: int | None = None,
    ) -> None:
        self._central, self._ledger = central, ledger
        self._example_noise = _OF_SITES if noise_of_sites else _OF_SEED
        self._example_assumption = _TOLD_BY_SITES if noise_of_sites else _NOT_RELEASED
        self._pooled, self._releases = steps_per_epoch is not None, steps_per_epoch or 1
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
            releases = round_num * self._releases
            spent["epsilon_as_run"] = self._as_run.after(releases)
            spent["epsilon_at_noise_cohort"] = self._at_noise_cohort.after(releases)
        if self._ledger is not None:
            spent["example_epsilon_max"] = self._ledger.largest_epsilon()
        return spent

    def affordable_rounds(self, num_rounds: int) -> int:
        """Return how many of the rounds the budget allows, counted from the first."""
        if self._central is None or self._central.budget is None:
            return num_rounds
        budget = self._central.budget
        rounds = range(1, num_rounds + 1)
        return bisect_right(
            rounds, budget, key=lambda num: self._at_noise_cohort.after(num * self._releases)
        )

    def card(self, num_rounds: int, rounds_done: int) -> dict[str, Any]:
        """Return the privacy card: what was promised to whom, and what it rests on."""
        card: dict[str, Any] = {"num_rounds": num_rounds, "rounds_done": rounds_done}
        if self._central is not None:
            card["central"] = self._central_card(self._central, num_rounds)
        if self._ledger is not None:
            card["example_level"] = {
                **self._ledger.card(),
                "noise": self._example_noise,
                "released": "each user's trained arrays, to the server",
                "assumptions": [
                    "how many examples a user holds is public: it sets the sampling rate, the "
                    "number of steps and the scale of the noise",
                    self._example_assumption,
                ],
            }
        if len(card) == 2:
            card["note"] = "no noise was added: this run carries no privacy guarantee"
        return card

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: the mechanism's state and the ledger."""
        state: dict[str, Any] = {}
        if self._central is not None:
            state["central"] = self._central.mechanism.state_dict()
        if self._ledger is not None:
            ledger = self._ledger.state_dict()
            counts = torch.from_numpy(ledger["participations"])
            state["example_level"] = {**ledger, "participations": counts}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` returned."""
        if self._central is not None:
            self._central.mechanism.load_state_dict(state["central"])
        if self._ledger is not None:
            ledger = state["example_level"]
            counts = ledger["participations"].numpy()
            self._ledger.load_state_dict({**ledger, "participations": counts})

    def _central_card(self, central: CentralSpending, num_rounds: int) -> dict[str, Any]:
        mechanism, as_run, predicted = central.mechanism, central.as_run, central.at_noise_cohort
        assumptions = [
            "the server is trusted: users send their updates in the clear",
            "losses, norms and the figures called diagnostic in the record are not released",
        ]
        assumptions += central.unmet_assumptions()
        releases = num_rounds * self._releases
        adaptive = mechanism.adaptive
        return {
            "mechanism": "Gaussian noise on the sum of clipped "
            + ("gradients, one per user" if self._pooled else "updates"),
            "noise": _OF_SEED if mechanism.secret is None else _SECRET,
            "unit": "user",
            "released": f"the {'model' if self._pooled else 'global arrays'} after every "
            + ("step" if self._pooled else "round")
            + (", and the noised share of unclipped users" if adaptive else ""),
            "neighboring": as_run.relation,
            "sampling": as_run.sampling,
            "accountant": central.accountant,
            "population_size": as_run.population_size,
            "cohort_size": as_run.cohort_size,
            "sampling_rate": as_run.sampling_rate,
            "noise_cohort_size": mechanism.noise_cohort_size,
            "num_releases": releases,
            "clipping_norm": mechanism.clipping_norm,
            "adaptive_clipping": adaptive
            and {
                "quantile": adaptive.quantile,
                "clip_learning_rate": adaptive.learning_rate,
                "count_noise_stddev": mechanism.count_noise_stddev,
                "sum_noise_multiplier": mechanism.sum_noise_multiplier,
            },
            "sensitivity": mechanism.sensitivity,
            "noise_multiplier": mechanism.noise_multiplier,
            "noise_multiplier_as_run": mechanism.noise_multiplier_as_run,
            "noise_stddev_sum": mechanism.noise_stddev_sum,
            "noise_stddev_mean": mechanism.noise_stddev_mean,
            "delta_as_run": central.delta_as_run,
            "epsilon_as_run": self._as_run.after(releases),
            "deployment": {
                "assumed": central.deployment_assumed,
                "population_size": predicted.population_size,
                "cohort_size": predicted.cohort_size,
            },
            "delta_at_noise_cohort": central.delta_at_noise_cohort,
            "epsilon_at_noise_cohort": self._at_noise_cohort.after(releases),
            "budget": central.budget,
            "assumptions": assumptions,
        }


class PooledExampleSpending:
    """What the pooled baseline spends under example-level DP-SGD: the same for every image.

    Args:
        steps: All steps of all epochs; their cohorts are the batches.
        delta: Of epsilon.
        accountant: Of epsilon.
        max_grad_norm: Bound of one image's gradient.
        steps_per_epoch: Steps that count as a round.
    """

    def __init__(
        self,
        steps: GaussianRounds,
        delta: float,
        accountant: Accountant,
        max_grad_norm: float,
        steps_per_epoch: int,
    ) -> None:
        self.steps = steps
        self._delta, self._accountant = delta, accountant
        self._max_grad_norm, self._steps_per_epoch = max_grad_norm, steps_per_epoch
        self._epsilon = EpsilonPerRound(steps, delta, accountant)

    def spent(self, round_num: int) -> dict[str, Any]:
        """Return epsilon after an epoch, by the name that it has in the record."""
        return {"example_epsilon_max": self._epsilon.after(round_num * self._steps_per_epoch)}

    def affordable_rounds(self, num_rounds: int) -> int:
        """Return all of them: the noise was calibrated for the whole run."""
        return num_rounds

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: epsilon follows from the epoch's number."""
        return {}

    def card(self, num_rounds: int, rounds_done: int) -> dict[str, Any]:
        """Return the privacy card."""
        steps = self.steps
        return {
            "num_rounds": num_rounds,
            "rounds_done": rounds_done,
            "example_level": {
                "mechanism": "Gaussian noise on the sum of clipped per-example gradients",
                "noise": _OF_SEED,
                "unit": "example",
                "released": "the model after every step",
                "neighboring": steps.relation,
                "sampling": steps.sampling,
                "accountant": self._accountant,
                "num_examples": steps.population_size,
                "batch_size": steps.cohort_size,
                "sampling_rate": steps.sampling_rate,
                "num_releases": num_rounds * self._steps_per_epoch,
                "max_grad_norm": self._max_grad_norm,
                "noise_multiplier": steps.noise_multiplier,
                "delta": self._delta,
                "epsilon_max": self._epsilon.after(num_rounds * self._steps_per_epoch),
                "assumptions": ["losses are not released"],
            },
        }
