"""Settings for all tests."""

from hypothesis import settings

# Speed is measured in benchmarks/, never in a test; and a test that fails must fail again.
settings.register_profile("fedsim", deadline=None, derandomize=True)
settings.load_profile("fedsim")
