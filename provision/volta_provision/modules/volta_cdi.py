#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Which driver is described to containers, and which runtimes know nothing of the GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: volta_cdi
short_description: Look at what describes the GPUs to containers
description:
  - Compares the loaded driver with the one that the CDI specification names.
  - Finds the container runtimes that are here and have no entry for NVIDIA. Reads only.
options:
  spec:
    description: The CDI specification's file.
    type: path
    default: /etc/cdi/nvidia.yaml
  runtimes:
    description: By name C(program), which shows that a runtime is here, and C(file), its settings.
    type: dict
    default: {}
author: ["Volta (!UNKNOWN)"]
"""
EXAMPLES = r"""
- name: Look at what describes the GPUs to containers
  volta.stack.volta_cdi:
    runtimes:
      docker: {program: /usr/bin/dockerd, file: /etc/docker/daemon.json}
"""
RETURN = r"""
driver:
  description: Version of the loaded driver, empty where none is.
  type: str
  returned: always
described:
  description: Version of the driver whose files the specification names, empty where there is none.
  type: str
  returned: always
lacking:
  description: Names of the runtimes that are here without an entry for NVIDIA.
  type: list
  elements: str
  returned: always
"""

import re
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

LOADED = "proc/driver/nvidia/version"


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def look(spec: str, runtimes: dict[str, dict[str, str]], root: Path = Path("/")) -> dict[str, Any]:
    """Return what the module returns, `root` being the host's root directory."""
    loaded = re.search(r"Kernel Module\D*(\d+\.[\d.]+)", read(root / LOADED))
    named = re.search(r"libcuda\.so\.(\d+\.[\d.]+)", read(root / spec.lstrip("/")))
    return {
        "driver": loaded[1] if loaded else "",
        "described": named[1] if named else "",
        "lacking": [
            name
            for name, runtime in runtimes.items()
            if (root / runtime["program"].lstrip("/")).exists()
            and "nvidia" not in read(root / runtime["file"].lstrip("/"))
        ],
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "spec": {"type": "path", "default": "/etc/cdi/nvidia.yaml"},
            "runtimes": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, **look(module.params["spec"], module.params["runtimes"]))


if __name__ == "__main__":
    main()
