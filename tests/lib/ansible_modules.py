"""The project's Ansible modules, imported for their own functions."""

import importlib
import sys
from types import ModuleType
from unittest import mock

_ANSIBLE = (
    "ansible",
    "ansible.module_utils",
    "ansible.module_utils.basic",
    "ansible.module_utils.urls",
)


def load(name: str) -> ModuleType:
    """Import a module of volta_provision.modules without Ansible, of which its functions need none.

    Importing Ansible replaces sys.intern, which torch.compile does not bear in the same process.
    The plays in tests/hosts run the modules whole.
    """
    with mock.patch.dict(sys.modules, {module: mock.MagicMock() for module in _ANSIBLE}):
        return importlib.import_module(f"volta_provision.modules.{name}")
