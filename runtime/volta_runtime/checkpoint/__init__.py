"""Checkpoints on disk, read from their headers: no torch, no numpy, no weight data.

A checkpoint is a map from module to weight format, resolved once from its config and checked
against its tensors. A new format is a row in formats.py.
"""

from volta_runtime.checkpoint.checkpoint import Checkpoint, open_checkpoint, verify
from volta_runtime.checkpoint.errors import CheckpointError
from volta_runtime.checkpoint.safetensors import TensorInfo

__all__ = ["Checkpoint", "CheckpointError", "TensorInfo", "open_checkpoint", "verify"]
