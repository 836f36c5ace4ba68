"""No test asserts wall time, so Hypothesis neither times examples nor gives up on slow draws."""

from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
