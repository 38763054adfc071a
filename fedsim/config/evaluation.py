"""Settings of what is scored."""

from typing import Annotated, Literal

from pydantic import Field

from fedsim.config.section import Count, Fraction, Positive, Section

_LEARNERS = ["nearest_centroid", "nearest_centroid_cosine", "nearest_neighbor", "logistic_head"]


class PersonalizationConfig(Section):
    """A few steps of each test user's own, from the best model (``fedsim.evaluation.personalize``).

    What is left out is as in ``federated.local``, and so are the optimizer's other settings.

    Attributes:
        share: Of a user's images, drawn by the run's seed, that are trained on; the rest is scored.
        epochs: Passes over them; 0 trains nothing.
        batch_size: Images a step.
        learning_rate: Of SGD.
    """

    share: Fraction = 0.5
    epochs: Annotated[int, Field(ge=0)] | None = None
    batch_size: Count | None = None
    learning_rate: Positive | None = None


class FineTuningConfig(Section):
    """How the learner ``fine_tuning`` trains in each episode.

    Attributes:
        num_steps: Of SGD on the whole support.
        learning_rate: Of SGD, with momentum 0.9.
    """

    num_steps: Count = 20
    learning_rate: Positive = 0.01


class FewShotConfig(Section):
    """Few-shot episodes on images of test users (``fedsim.run_few_shot``).

    Attributes:
        num_ways: Classes of an episode.
        num_shots: Images of each class that a learner sees with their class.
        num_queries: Further images of each class that it names.
        num_episodes: Of a run.
        num_runs: The score is that of the worst.
        episode_seed: ``fixed``: all runs have the same episodes, and differ by what learners draw.
            ``per_run``: each draws its own.
        seed: Of the episodes; not the run's, so that all seeds of a sweep are judged alike.
        labels: The label set of the classes; the default is ``data.labels``.
        learners: ``nearest_centroid``, ``nearest_centroid_cosine``, ``nearest_neighbor``,
            ``logistic_head``, ``fine_tuning``, ``constant``, or a ``package.module:function`` of
            one's own (``fedsim.evaluation.few_shot.Learner``), which is given features.
        fine_tuning: How the learner of this name trains.
    """

    num_ways: Annotated[int, Field(ge=2)] = 5
    num_shots: Count = 5
    num_queries: Count = 19
    num_episodes: Annotated[int, Field(ge=2)] = 600
    num_runs: Count = 3
    episode_seed: Literal["fixed", "per_run"] = "fixed"
    seed: Annotated[int, Field(ge=0)] = 0
    labels: Literal["coarse", "fine"] | None = None
    learners: Annotated[list[str], Field(min_length=1)] = _LEARNERS
    fine_tuning: FineTuningConfig = FineTuningConfig()


class EvaluationConfig(Section):
    """How models are scored.

    Attributes:
        every: Rounds between scores on the validation split; the last round is always scored.
        batch_size: Images a forward pass. Part of the numbers' last bits.
        num_val_images: Score a fixed, seeded subset of the validation split, of this size.
        bootstrap_resamples: Resamples, by user, for the intervals on test; 0 for none.
        personalization: Score models that test users have fitted to their own images, too.
        few_shot: Judge the best model as a backbone for classes of which it gets a few images.
        record_clients: Write what each user of each round reported to ``clients.csv``: some 50
            bytes a row, so 50 MB for 5,000 rounds of 200 users.
    """

    every: Count = 1
    batch_size: Count = 128
    num_val_images: Count | None = None
    bootstrap_resamples: Annotated[int, Field(ge=0)] = 500
    personalization: PersonalizationConfig | None = None
    few_shot: FewShotConfig | None = None
    record_clients: bool = False
