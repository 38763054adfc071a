"""Which runs a file's settings make, and what the numbers of each depend on."""

from dataclasses import dataclass
from typing import Any

from fedsim.build_pooled import CENTRALIZED, Method, baseline_id, methods_of, settings_of
from fedsim.config import RunConfig
from fedsim.errors import ConfigError


@dataclass(frozen=True)
class Job:
    """One run: federated, or the centralized baseline of some settings.

    Attributes:
        run_id: Names its folder.
        config: Its settings.
        baseline: Which of the centralized baselines; None for a federated run.
    """

    run_id: str
    config: RunConfig
    baseline: Method | None = None

    @property
    def setting(self) -> str:
        """The run id without its seed, which runs that differ in their seed alone share.

        Of a run that is named after its seed only, it is the experiment's name.

        Examples:
            >>> Job("cohort_size=4-seed7", RunConfig(name="sizes", seed=7)).setting
            'cohort_size=4'
        """
        before, seed, after = self.run_id.rpartition(f"seed{self.config.seed}")
        if not seed:
            return self.run_id
        return before.removesuffix("-") + after or self.config.name

    @property
    def num_rounds(self) -> int:
        """Rounds or epochs."""
        if self.baseline is not None:
            return settings_of(self.config, self.baseline).epochs
        return self.config.federated.num_rounds

    @property
    def numbers_depend_on(self) -> dict[str, Any]:
        """The settings that change the numbers of a round.

        How many rounds there are does not, nor does the budget: a run may go on beyond what it
        was started for, with the noise that it was started with, until the budget is spent.
        """
        if self.baseline is None:
            settings = self.config.model_dump(exclude={CENTRALIZED, "engine"})
            settings["data"].pop("cache_mb")
            settings["federated"].pop("num_rounds")
            for after_the_rounds in ("personalization", "few_shot", "record_clients"):
                settings["evaluation"].pop(after_the_rounds)
            if settings["privacy"]["central"]:
                settings["privacy"]["central"].pop("epsilon")
            return settings
        shared = {"federated", "strategy", "privacy", "case", "engine", CENTRALIZED}
        pooled = self.pooled_settings
        if self.baseline != "example_level":  # whose noise is calibrated for its epochs
            pooled = {k: v for k, v in pooled.items() if k not in ("epochs", "epsilon")}
        settings = self.config.model_dump(exclude=shared)
        settings["evaluation"].pop("record_clients")
        settings["data"].pop("cache_mb")
        return {**settings, CENTRALIZED: {self.baseline: pooled}}

    @property
    def pooled_settings(self) -> dict[str, Any]:
        """The settings of a baseline alone, without those of its private siblings."""
        settings = settings_of(self.config, self.baseline or "plain")
        return settings.model_dump(exclude={"example_level", "user_level"})


def jobs_of(runs: dict[str, RunConfig]) -> list[Job]:
    """Return the runs of a file, and after them the centralized baselines that they share."""
    jobs = [Job(run_id, config) for run_id, config in runs.items()]
    baselines: list[Job] = []
    for config in runs.values():
        for method in methods_of(config):
            alike = [b for b in baselines if (b.baseline, b.config.seed) == (method, config.seed)]
            suffix = f"-{len(alike) + 1}" if alike else ""
            job = Job(f"{baseline_id(method, config.seed)}{suffix}", config, method)
            if not any(_same_baseline(job, other) for other in alike):
                baselines.append(job)
    taken = runs.keys() & {job.run_id for job in baselines}
    if taken:
        raise ConfigError(
            f"cases: expected names other than the baselines', found a run called {min(taken)}; "
            f"rename the case {runs[min(taken)].case!r}"
        )
    return jobs + baselines


def _same_baseline(one: Job, other: Job) -> bool:
    return (one.numbers_depend_on, one.pooled_settings) == (
        other.numbers_depend_on,
        other.pooled_settings,
    )
