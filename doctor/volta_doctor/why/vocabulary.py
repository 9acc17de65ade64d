"""The words by which people and programs say what a text is about, and what goes wrong."""

import re

FLAGS = re.IGNORECASE | re.ASCII  # a word also ends where Chinese begins
# That something stands still.
HANGS = re.compile(
    r"\b(?:hangs?|hanging|hung|stuck|deadlock(?:s|ed)?|freez(?:es?|ing)|frozen|spins? forever"
    r"|never (?:returns|ends|prints|finish(?:es)?|complet(?:es|ed)|converges)"
    r"|(?:prints|prints out|outputs?) nothing (?:more|else)|no (?:further )?output"
    r"|does(?: not|n't) (?:return|finish|start))\b"
    r"|\bstops? (?:responding|answering|generating)\b"
    r"|\bno (?:more |further )?tokens? (?:come|is|are)"
    r"|卡住|卡死|挂起|一直没有反应|没有响应",
    FLAGS,
)
# That answers are nonsense: also one letter that goes on, and a syllable again and again.
GARBAGE = re.compile(
    r"incoherent|gibberish|garbage|garbled|nonsense|\bNUL\b|Unicode NULL|(?:\\u0000|\\x00|\x00){2,}"
    r"|乱码|!{12,}|\b([a-wyz])\1{15,}\b|\b(([a-z])(?!\3)[a-z]{1,11})\2{4,}\b|[?@]{16,}",
    FLAGS,
)
SLOW = re.compile(r"(?<![\d.])0\.\d+ ?(?:tok(?:en)?s?|t) ?(?:/|per) ?s", FLAGS)
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
