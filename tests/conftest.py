"""Settings shared by every test."""

import os

from hypothesis import HealthCheck, settings

# Deadlines, and how fast examples are drawn, measure the machine: a slow neighbour must not fail a property.
settings.register_profile("dev", deadline=None)
# The same examples on every run, so that a red build is red for everyone until someone fixes it.
settings.register_profile(
    "ci", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
