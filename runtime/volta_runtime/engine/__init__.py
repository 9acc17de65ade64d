"""From token ids to streamed text: one thread owns the model and serves bounded requests."""

from volta_runtime.engine.engine import Engine, EngineConfig
from volta_runtime.engine.params import SamplingParams
from volta_runtime.engine.scheduler import Generation, Output
from volta_runtime.engine.tokenizer import Tokenizer

__all__ = ["Engine", "EngineConfig", "Generation", "Output", "SamplingParams", "Tokenizer"]
