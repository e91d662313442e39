"""Settings shared by all tests: no deadlines (tests contain no timing), and reproducible examples."""

import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "anchorhead", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("anchorhead")
torch.set_num_threads(1)
