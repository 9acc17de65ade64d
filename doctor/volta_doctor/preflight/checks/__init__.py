"""The checks of a checkpoint, a file for each area.

Every module in this package registers its own.
"""

from importlib import import_module
from pkgutil import iter_modules

from volta_doctor.preflight.registry import MODEL_CHECKS

__all__ = ["MODEL_CHECKS"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
