"""What a user's own model is fitted to, and what it is scored on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PersonalTraining:
    """How one user fits the model to some images, to score it on the others.

    Attributes:
        split: Of the images.
        owner: The user's id; order of the images and augmentation depend on it.
        indices: All the user's images by number in the split: first those to train on.
        num_trained_on: How many these are.
        epochs: Passes over them.
        batch_size: Images a step.
        learning_rate: Of SGD; its other settings are those of the user's training.
    """

    split: str
    owner: str
    indices: list[int]
    num_trained_on: int
    epochs: int
    batch_size: int
    learning_rate: float
