"""The settings of a run: a frozen tree, checked before any work.

Field names are the words of the documentation; ``fedsim.config_file`` reads them from YAML. A
component (strategy, model) takes its own parameters beside ``name``: they are checked against its
signature when it is built.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Fraction = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of the tree: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Component(BaseModel):
    """Something with a name and parameters of its own."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    name: str

    @property
    def parameters(self) -> dict[str, Any]:
        """Every key but ``name``."""
        return dict(self.model_extra or {})


class ByUserPartition(Section):
    """The train users that the data have."""

    method: Literal["by_user"] = "by_user"


class SeededPartition(Section):
    """Train images that are dealt to users by draws of their own.

    Attributes:
        seed: Of the deal; not the run's, so that all seeds of a sweep train the same users.
    """

    seed: Annotated[int, Field(ge=0)] = 0


class IidPartition(SeededPartition):
    """The same users and sizes, images dealt at random: the IID twin of the data."""

    method: Literal["iid"]


class IidConstantPartition(SeededPartition):
    """New users of a constant number of images, dealt at random.

    Attributes:
        images_per_user: The last user holds what is left over.
    """

    method: Literal["iid_constant"]
    images_per_user: Count = 50


class DirichletPartition(SeededPartition):
    """The same users and sizes; each user prefers some labels (``fedsim.data.dealing.dirichlet``).

    Attributes:
        alpha: Concentration: small for users of one label, large for the IID twin.
        labels: The label set that users' preferences are about.
    """

    method: Literal["dirichlet"]
    alpha: Positive
    labels: Literal["coarse", "fine"] = "coarse"


class QuantityPartition(SeededPartition):
    """The same users, images dealt at random, sizes drawn anew from a log-normal law.

    Attributes:
        skew: Standard deviation of the sizes' logarithm; 0 for equal sizes.
    """

    method: Literal["quantity"]
    skew: NonNegative


class FilePartition(Section):
    """Users as a file says that ``fedsim data partition`` wrote.

    Attributes:
        path: CSV with the columns image_id and user_id.
    """

    method: Literal["file"]
    path: Annotated[str, Field(min_length=1)]


Partition = Annotated[
    ByUserPartition
    | IidPartition
    | IidConstantPartition
    | DirichletPartition
    | QuantityPartition
    | FilePartition,
    Field(discriminator="method"),
]


class DataConfig(Section):
    """Which data, and how an image becomes an input.

    Attributes:
        source: ``openclipart``, a fedsim HDF5 file, a folder in FLAIR's layout, ``synthetic``
            (drawn, with FLAIR's statistics), or a ``package.module:Class`` of one's own, which is
            given those of this section's other settings that its signature names.
        partition: How the train split's images are dealt to users; val and test stay by user.
        labels: FLAIR's 17 coarse or 1,628 fine labels (17 and 81 on OpenClipart).
        image_size: Side in pixels of the square to which images are decoded.
        augmentation: What training does to an image beyond that.
        input_size: Side of what the model sees; the default is ``image_size``.
        normalization: Mean and standard deviation per channel: ``centered`` takes pixels to [-1,
            1], ``imagenet`` is torchvision's, ``efficientnet_lite`` is (pixel - 127) / 128.
        max_images_per_user: A train user's images beyond this many are left out.
        population_size: Train users of the source ``synthetic``; the default is FLAIR's 41,131.
        cache_mb: Decoded images are kept up to this many MiB, over all splits and processes (on Ray
            in each actor): the first that are read; others are decoded at each read. Features that
            are kept in memory take up to as much more in each process.
    """

    source: str = "openclipart"
    partition: Partition = ByUserPartition()
    labels: Literal["coarse", "fine"] = "coarse"
    image_size: Count = 32
    augmentation: Literal["none", "flip", "random_crop", "random_resized_crop"] = "none"
    input_size: Count | None = None
    normalization: Literal["centered", "imagenet", "efficientnet_lite"] = "centered"
    max_images_per_user: Count | None = None
    population_size: Count | None = None
    cache_mb: Annotated[int, Field(ge=0)] = 512

    @model_validator(mode="after")
    def _population_is_counted(self) -> "DataConfig":
        if self.source != "synthetic" and self.population_size is not None:
            raise ValueError(
                "population_size: expected none with real data, whose users are counted, found "
                f"{self.population_size} with {self.source}; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _crop_within_image(self) -> "DataConfig":
        if self.augmentation == "random_crop" and (self.input_size or 0) > self.image_size:
            raise ValueError(
                f"input_size: expected at most image_size = {self.image_size} to crop from, found "
                f"{self.input_size}; lower it or raise image_size"
            )
        return self


class ModelConfig(Component):
    """The model.

    ``cnn``, ``resnet18``, ``efficientnet_lite0``, or ``package.module:function`` of one's own.

    Attributes:
        name: Which one.
        memory_format: How images lie in memory. The two differ in the last bits of the numbers.
        device: Where it trains and is scored, as torch names it: ``cpu``, ``cuda``, ``cuda:1``. All
            workers use the same one. Numbers differ between devices.
        precision: Of forward and backward passes; parameters stay float32. Under ``bfloat16``
            convolutions and matrix products compute with 8 bits of mantissa.
    """

    name: str = "cnn"
    memory_format: Literal["channels_last", "contiguous"] = "channels_last"
    device: Annotated[str, Field(pattern=r"^[a-z]+(:\d+)?$")] = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"


class LocalConfig(Section):
    """How one user trains.

    Attributes:
        epochs: Passes over the user's images.
        batch_size: Images a step; the last batch of a pass may be smaller. Under example-level
            DP-SGD the expected size.
        learning_rate: Of SGD.
        momentum: Of SGD, starting at zero for every user and round.
        weight_decay: L2 penalty's factor.
        max_grad_norm: A batch's gradient is scaled to at most this L2 norm.
        clip_each_array: That is the norm of each parameter array's gradient by itself, as Keras's
            ``clipnorm`` has it, and not that of all of them together.
    """

    epochs: Count = 1
    batch_size: Count = 16
    learning_rate: Positive = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NonNegative = 0.0
    max_grad_norm: Positive | None = None
    clip_each_array: bool = False

    @model_validator(mode="after")
    def _clipping_has_a_bound(self) -> "LocalConfig":
        if self.clip_each_array and self.max_grad_norm is None:
            raise ValueError(
                "clip_each_array: expected max_grad_norm beside it, found none; add the bound"
            )
        return self


class DropOutConfig(Section):
    """Users that fail in a round (``fedsim.attendance``).

    Attributes:
        share: Probability that a user who is asked does not answer, drawn for each round.
    """

    share: Fraction


class StragglersConfig(Section):
    """Users that are too slow for a round's deadline (``fedsim.attendance``).

    Attributes:
        deadline: When the server goes on, in image passes: 1 is what the median device needs to
            train on one image once. A user with n images needs ``epochs * n * slowness`` of them.
        spread: Standard deviation of the logarithm of a device's slowness, which is drawn once for
            each user and has the median 1; 0 for devices that are all alike.
    """

    deadline: Positive
    spread: NonNegative = 0.5


class FederatedConfig(Section):
    """Rounds and cohorts.

    Attributes:
        num_rounds: T.
        cohort_size: C, the users of a round; the expected number under Poisson sampling.
        sampling: ``poisson`` (every user with probability C / N) or ``fixed_size`` (C users without
            replacement). The default is Poisson under central DP, fixed size otherwise.
        local: How one user trains.
        drop_out: Users of a cohort that fail; the default is none.
        stragglers: Users of a cohort that are too slow; the default is none.
    """

    num_rounds: Count = 100
    cohort_size: Count = 20
    sampling: Literal["poisson", "fixed_size"] | None = None
    local: LocalConfig = LocalConfig()
    drop_out: DropOutConfig | None = None
    stragglers: StragglersConfig | None = None


class StrategyConfig(Component):
    """The aggregation strategy: a registered name, ``package.module:Class`` or ``./file.py:Class``.

    Attributes:
        name: Which one.
    """

    name: str = "fedavg"


class DeploymentConfig(Section):
    """A deployment that the run predicts: an assumption of the user's, printed as such.

    Attributes:
        population_size: Users that can be sampled there.
        cohort_size: Users of a round there.
    """

    population_size: Count
    cohort_size: Count

    @model_validator(mode="after")
    def _cohort_within_population(self) -> "DeploymentConfig":
        if self.cohort_size > self.population_size:
            raise ValueError(
                f"cohort_size: expected at most population_size = {self.population_size}, found "
                f"{self.cohort_size}; lower it"
            )
        return self


class NoiseConfig(Section):
    """How much noise, and what it may cost.

    Attributes:
        noise_multiplier: Standard deviation of the noise on the sum over its sensitivity. Give
            this, or ``epsilon``, or both.
        epsilon: Budget of all rounds together. Without ``noise_multiplier`` the noise is
            calibrated to it; with it, a run that would spend more is refused.
        delta: The default is N^-1.1 of the population that epsilon is about.
        accountant: ``pld`` (tight) or ``rdp``.
    """

    noise_multiplier: NonNegative | None = None
    epsilon: Positive | None = None
    delta: Fraction | None = None
    accountant: Literal["pld", "rdp"] = "pld"

    @model_validator(mode="after")
    def _noise_or_budget(self) -> "NoiseConfig":
        if self.noise_multiplier is None and self.epsilon is None:
            raise ValueError(
                "expected noise_multiplier or epsilon, found neither; give the noise, or the "
                "budget that it is calibrated to"
            )
        return self


class CentralPrivacyConfig(NoiseConfig):
    """User-level DP: the server clips every user's update and noises the sum.

    Noise multiplier and budget are those at ``noise_cohort_size``.

    Attributes:
        clipping_norm: S, the L2 bound of one user's update; of the first round's if it adapts.
        adaptive_quantile: The share of users whose update should stay unclipped; the clipping norm
            follows it. The default is a fixed norm.
        clip_learning_rate: How fast it follows.
        noise_cohort_size: The cohort that the noise is calibrated for; the noise is then scaled to
            the cohort at hand, so that both have the same signal-to-noise ratio. The default is the
            deployment's cohort, or ``cohort_size``.
        deployment: Another population and cohort that the run predicts.
    """

    clipping_norm: Positive
    adaptive_quantile: Fraction | None = None
    clip_learning_rate: Positive = 0.2
    noise_cohort_size: Count | None = None
    deployment: DeploymentConfig | None = None


class ExampleLevelPrivacyConfig(Section):
    """Example-level DP-SGD on every user's own training.

    Attributes:
        max_grad_norm: L2 bound of one example's gradient.
        noise_multiplier: Standard deviation of the noise on a batch's sum over ``max_grad_norm``.
        delta: Of every user's epsilon.
        accountant: ``rdp`` or ``pld``.
    """

    max_grad_norm: Positive
    noise_multiplier: NonNegative
    delta: Fraction = 1e-5
    accountant: Literal["pld", "rdp"] = "rdp"


class PrivacyConfig(Section):
    """Central DP, example-level DP-SGD, both or neither.

    Attributes:
        central: The server's part.
        example_level: The users' part.
    """

    central: CentralPrivacyConfig | None = None
    example_level: ExampleLevelPrivacyConfig | None = None


class PooledConfig(Section):
    """How the pooled train split is trained on.

    Attributes:
        epochs: Passes over the pooled images; each is scored like a round.
        optimizer: ``adam`` or ``sgd``.
        learning_rate: Of the optimizer.
        momentum: Of SGD.
        weight_decay: L2 penalty's factor.
    """

    epochs: Count = 10
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: Positive = 1e-3
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NonNegative = 0.0


class PooledExampleLevelConfig(PooledConfig, NoiseConfig):
    """The baseline under example-level DP-SGD: what one image may change is bounded.

    Attributes:
        batch_size: Expected number of images in a step, drawn by Poisson sampling.
        max_grad_norm: L2 bound of one image's gradient.
    """

    batch_size: Count = 64
    max_grad_norm: Positive


class PooledUserLevelConfig(PooledConfig, CentralPrivacyConfig):
    """The baseline under user-level DP: each step's gradients are clipped per user and noised.

    Attributes:
        cohort_size: Expected number of users in a step, drawn by Poisson sampling. A user's
            gradient is that of the mean loss over their images.
    """

    cohort_size: Count = 20


class CentralizedConfig(PooledConfig):
    """The baseline that trains the same model on the pooled train split.

    Attributes:
        batch_size: Images a step.
        example_level: A second baseline, under example-level DP-SGD.
        user_level: Another one, under user-level DP.
    """

    batch_size: Count = 64
    example_level: PooledExampleLevelConfig | None = None
    user_level: PooledUserLevelConfig | None = None


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
    learners: Annotated[list[str], Field(min_length=1)] = [
        "nearest_centroid",
        "nearest_centroid_cosine",
        "nearest_neighbor",
        "logistic_head",
    ]
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


class EngineConfig(Section):
    """Where clients run. Nothing here changes a number.

    Attributes:
        name: ``in_process``: workers on this machine; ``ray``: actors of Ray, here or on a cluster.
        workers: How many; the default is one for each core, and on Ray as many as find room
            beside one another, by the memory that one user was seen to need.
        checkpoint_every: Rounds between checkpoints.
        address: Of a Ray cluster that is running: ``auto``, ``host:port`` or ``ray://host:port``.
            The default is a Ray of the run's own, on this machine alone.
        cpus_per_worker: Cores of one Ray actor; the default is 1, since it computes in one thread.
        gpus_per_worker: GPUs of one Ray actor, or a fraction of one; the default is none.
        feature_cache: The folder of features that a frozen backbone has made of images, which all
            runs share; null to keep them in memory. They are as private as the images.
    """

    name: Literal["in_process", "ray"] = "in_process"
    workers: Count | None = None
    checkpoint_every: Count = 1
    address: Annotated[str, Field(pattern=r"^(auto|(ray://)?[^\s/]+:[0-9]+)$")] | None = None
    cpus_per_worker: Positive | None = None
    gpus_per_worker: NonNegative | None = None
    feature_cache: Annotated[str, Field(min_length=1)] | None = "~/.cache/fedsim/features"

    @model_validator(mode="after")
    def _ray_settings(self) -> "EngineConfig":
        for key in ("address", "cpus_per_worker", "gpus_per_worker"):
            if self.name != "ray" and getattr(self, key) is not None:
                raise ValueError(
                    f"{key}: expected none with {self.name}, found {getattr(self, key)}; set "
                    "engine.name: ray, or leave it out"
                )
        gpus = self.gpus_per_worker or 0.0
        if gpus > 1 and gpus != int(gpus):
            raise ValueError(
                f"gpus_per_worker: expected a fraction of one GPU or a whole number, found {gpus}; "
                "round it"
            )
        return self


class RunConfig(Section):
    """All settings of one run.

    Attributes:
        name: Of the experiment; its folder.
        case: Which of the file's cases this is.
        seed: Every draw of the run follows from it.
        data: Which data.
        model: Which model.
        federated: Rounds and cohorts.
        strategy: How updates are combined.
        privacy: What is noised.
        centralized: The baseline; its presence adds it.
        evaluation: How models are scored.
        engine: Where clients run.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    case: str | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    federated: FederatedConfig = FederatedConfig()
    strategy: StrategyConfig = StrategyConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    centralized: CentralizedConfig | None = None
    evaluation: EvaluationConfig = EvaluationConfig()
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _resolve_sampling(self) -> "RunConfig":
        if self.federated.sampling is None:
            sampling = "poisson" if self.privacy.central else "fixed_size"
            federated = self.federated.model_copy(update={"sampling": sampling})
            object.__setattr__(self, "federated", federated)
        return self

    @model_validator(mode="after")
    def _resolve_personalization(self) -> "RunConfig":
        own = self.evaluation.personalization
        if own is not None:
            names = {"epochs", "batch_size", "learning_rate"}
            local = self.federated.local.model_dump(include=names)
            given = {name: v for name, v in own.model_dump().items() if v is not None}
            resolved = PersonalizationConfig(**{**local, **given})
            evaluation = self.evaluation.model_copy(update={"personalization": resolved})
            object.__setattr__(self, "evaluation", evaluation)
        return self
