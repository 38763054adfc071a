"""Settings for all tests."""

import pytest
import torch
from hypothesis import settings

# Speed is measured in benchmarks/, never in a test; and a test that fails must fail again.
settings.register_profile("fedsim", deadline=None, derandomize=True)
settings.load_profile("fedsim")


@pytest.fixture(autouse=True)
def _same_draws_whatever_ran_before() -> None:
    """Seed torch: a model's initial weights can put a maximum or a ReLU on its edge."""
    torch.manual_seed(0)
