"""The numbers that every peer shares: the CNN benchmark of pfl-research (arXiv 2404.06430).

50 of 1,000 users a round, each with 50 images, train one epoch in batches of 10: 250 optimizer
steps a round, on a network of 1,626,442 parameters.
"""

import os

SEED = 0
NUM_USERS = 1_000
IMAGES_PER_USER = 50
IMAGE_SHAPE = (32, 32, 3)
NUM_CLASSES = 10
COHORT_SIZE = int(os.environ.get("BENCHMARK_COHORT_SIZE", "50"))
BATCH_SIZE = 10
LEARNING_RATE = 0.1
