"""Decoder models: one file per architecture and one row per file in the registry."""

from volta_runtime.models.registry import Model, load_model

__all__ = ["Model", "load_model"]
