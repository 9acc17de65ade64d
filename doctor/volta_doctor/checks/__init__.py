"""The checks, by area: one small pure function for each row of catalog/checks.yaml."""

from volta_doctor.checks import driver, gpu, kernel, nvidia_smi, packages, stack
from volta_doctor.checks.registry import CHECKS

__all__ = ["CHECKS", "driver", "gpu", "kernel", "nvidia_smi", "packages", "stack"]
