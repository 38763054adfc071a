"""A made-up collection with FLAIR's published statistics, drawn when it is read.

It has FLAIR's users, images and splits (51,414; 429,078; 8 : 1 : 1), 17 coarse and 1,628 fine
labels. The index is drawn as a whole, in about half a second; an image is drawn each time it is
read, and is a function of the seed, its row, its owner and its fine labels alone. Nothing here is
a picture of anything, and nobody's data went into it but the published tables (Song, Granqvist
and Talwar 2022).

**Images per user.** The share of users with at least n images is a power law between a few knots,
1 at n = 1 and 1 in 82,262 at n = 4,151. A split's users are its equally spaced quantiles, shuffled.
Users above 5 images are scaled alike so that the split has its published number of images.

**Coarse labels.** An image has K of them, from a fixed law. User u seeks class c with the weight
``w_c e_uc ** -t``: e is exponential, and ``t = g n ** -h`` is the taste of a user with n images,
strong where there are few. An image takes the K classes with the smallest ``E / weight``, E
exponential anew for each image and class: K draws without replacement (Efraimidis and Spirakis
2006). So every user prefers some classes, and a user of many images sees all.

**Fine labels.** Each coarse label of an image brings 1 + x fine ones of its class, where the x of
an image sum to a number from a heavy-tailed law, dealt out evenly. User u has, for class c, an
endless list of fine labels; its s-th entry is a hash of (u, c, s), taken to a label of the class by
fixed shares. An image takes 1 + x entries from entry S on, with ``P(S > s) = (1 + s / r) ** -b``
and r in proportion to the user's number of images, up to a limit. So a user's images repeat each
other's labels, more of them bring new ones, and over all users every label has its share. A label
that is met twice in an image counts once. A coarse label is there if and only if a fine label of
its class is.

Which class a fine label belongs to, how many labels a class has, and all names but the twenty
published ones and the class names (``animal_017``) are made up.

**Images** are 64 x 64 pixels. The background is the user's: a wave of some direction and length
between two colours, shifted anew in each image, and a brightness. Each fine label adds a sign of
20 x 20 pixels near the place of its class: hue, number of petals and width of the stripes are the
class's, the same for all users; how it is turned, and a second colour, are the label's. Later signs
hide earlier ones, in random order, and uniform noise is laid over all.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from fedsim.data.faults import Faults
from fedsim.data.index import SPLITS, About, ImageIndex, Pixels, offsets_of
from fedsim.data.scan import Scan
from fedsim.data.synthetic_images import draw_image
from fedsim.data.synthetic_labels import draw_labels
from fedsim.data.synthetic_users import USERS, image_counts, image_ids, num_users, user_ids
from fedsim.errors import ConfigError

POPULATION_SIZE = USERS["train"]
SEED = 0  # the published counts of labels are met with this one

_MOST_USERS = 10_000_000  # whose index takes gigabytes; there are ids for six times as many
_ABOUT = About(
    name="synthetic FLAIR",
    origin="drawn by fedsim; no photos",
    licence="none needed: it shows nothing and nobody",
)


@dataclass(frozen=True, eq=False)
class SyntheticImages:
    """The images of the synthetic collection.

    Attributes:
        index: Who owns which image, with which labels.
        seed: Of every draw.
        about: Name, origin and licence of the collection.
        content_sha256: None: the images would all have to be drawn for it.
    """

    index: ImageIndex
    seed: int
    about: About = _ABOUT
    content_sha256: str | None = None

    @property
    def place(self) -> str:
        """What stands for a path."""
        return "synthetic"

    def read(self, rows: Iterable[int]) -> Iterator[Pixels]:
        """Draw the image of each row: a uint8 array of shape (64, 64, 3)."""
        fine = self.index.labels["fine"]
        for row in rows:
            user = int(np.searchsorted(self.index.user_offsets, row, side="right")) - 1
            labels = fine.indices[fine.indptr[row] : fine.indptr[row + 1]]
            yield draw_image(self.seed, row, user, labels.tolist())


def scan_synthetic(population_size: int | None = None, seed: int = SEED) -> Scan:
    """Draw the index of the synthetic collection; it has no faults.

    Args:
        population_size: Train users; val and test have users in proportion, but at least 4 (or as
            many as train). The default is FLAIR's 41,131. Another size has the same laws: the
            statistics differ by chance, and rare labels may occur nowhere, though all have names.
        seed: Of every draw. The published counts are matched with the default.

    Raises:
        ConfigError: The size is not within 1 and 10,000,000.

    Examples:
        >>> images = scan_synthetic(50).images
        >>> [len(images.index.user_ids), *images.index.users_of("val")]
        [62, 50, 56]
        >>> next(images.read([7])).shape
        (64, 64, 3)
    """
    population_size = POPULATION_SIZE if population_size is None else population_size
    if not 1 <= population_size <= _MOST_USERS:
        raise ConfigError(
            f"population_size: expected 1 to {_MOST_USERS:,} synthetic users to draw, found "
            f"{population_size:,}; change it"
        )
    users = num_users(population_size)
    sizes = np.concatenate(image_counts(users, seed))
    coarse, fine = draw_labels(sizes, seed)
    index = ImageIndex(
        user_ids=user_ids(users),
        user_splits=np.repeat(np.arange(len(SPLITS), dtype=np.uint8), list(users.values())),
        user_offsets=offsets_of(sizes),
        image_ids=image_ids(int(sizes.sum())),
        labels={"coarse": coarse, "fine": fine},
    )
    return Scan(SyntheticImages(index, seed), Faults("synthetic"))
