"""Lines of a case by regular expression: for what people say, which no tool's sentence fixes."""

import re
from itertools import islice

from volta_doctor.findings import Evidence
from volta_doctor.why.case import Case

# What belongs to drivers, CUDA and the serving of models. Words that are also English or a name
# elsewhere must stand alone; the others are told apart by themselves.
ABOUT_GPUS = re.compile(
    r"v?llm\b|vllm|sglang|sgl[_-]kernel|lmdeploy|turbomind|\[TM\]|ollama|llama|ggml|gguf|exllama"
    r"|(?<![a-z])(?:py|lib)?torch(?:run|vision|audio)?(?![a-z])|triton|cuda|nccl|nvidia|nvcc|nvlink"
    r"|nvml|nvrtc|cublas|cudnn|tensorrt|onnxruntime|flash[-_]?attn|flashinfer|xformers|bitsandbytes"
    r"|deepspeed|megatron|safetensors|transformers|compressed[-_]tensors|ctranslate2|\bGPUs?\b"
    r"|weight_scale|qweight|RayWorker|\.cuh?\b|\bV100\b|\bvolta\b|\bapex\b|\btesla\b|\bTGI\b"
    r"|text[-_]generation|\bray::|paddle|comfyui|\(SIGKILL\) received by PID",
    re.IGNORECASE,
)


def lines(case: Case, pattern: re.Pattern[str], most: int = 2) -> list[Evidence]:
    """Return the first lines in which a pattern is found."""
    every = ((text, line) for text in case.printed for line in text.lines)
    found = (text.evidence(line) for text, line in every if pattern.search(line.text))
    return list(islice(found, most))
