"""Checkpoints on disk, read from their headers: no torch, no numpy, no weight data.

inspect() reads all there is with all its faults; open_checkpoint() is the same for who serves, and
raises for the first that forbids it. A new weight format is a row in formats/.
"""

from volta_runtime.checkpoint.checkpoint import Checkpoint, inspect, open_checkpoint, verify
from volta_runtime.checkpoint.errors import CheckpointError
from volta_runtime.checkpoint.faults import Fault
from volta_runtime.checkpoint.tensors import TensorInfo

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Fault",
    "TensorInfo",
    "inspect",
    "open_checkpoint",
    "verify",
]
