"""Settings of the data and of how images are dealt to users."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedsim.config.section import Count, NonNegative, Positive, Section


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
