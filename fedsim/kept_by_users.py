"""What users keep between rounds, before a run: how much disk it may take."""

from fedsim import build
from fedsim.config import RunConfig


def client_states_mb(config: RunConfig, num_users: int, model_mb: float) -> float:
    """Return the most that the states of all users may take, in 1e6 bytes.

    Args:
        config: The settings.
        num_users: Of the population.
        model_mb: Size of the model's arrays.
    """
    part = build.build_part(config)
    if part is None:
        return 0.0
    ever_drawn = min(num_users, config.federated.num_rounds * config.federated.cohort_size)
    return model_mb * ever_drawn * part.state_copies
