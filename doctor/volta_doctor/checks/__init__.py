"""The checks, by area: one small pure function for each row of the catalogue.

Every module in this package registers its own.
"""

from importlib import import_module
from pkgutil import iter_modules

from volta_doctor.checks.registry import CHECKS

__all__ = ["CHECKS"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
