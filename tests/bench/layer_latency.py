"""What a layer of the embedded runtime costs a token on a GPU beside reading and computing.

    python tests/bench/layer_latency.py

A Llama so narrow that its kernels take no time to speak of: what is left is starting them, one by
one, from Python. One request, then four at once.
"""

import statistics
import time

import torch

from volta_runtime.layers import GatedLinear, HalfLinear, RMSNorm, Segment
from volta_runtime.models.llama import Layer, Llama, LlamaConfig

LAYERS, CONTEXT, STEPS = 28, 512, 200
CONFIG = LlamaConfig(
    vocab_size=1024,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    max_position_embeddings=2048,
    num_key_value_heads=4,
    head_dim=64,
)


def half(rows: int, columns: int) -> HalfLinear:
    return HalfLinear(torch.randn(rows, columns, device="cuda").half() * 0.02)


def norm() -> RMSNorm:
    return RMSNorm(torch.ones(CONFIG.hidden_size, device="cuda"), 1e-6, torch.float16)


def model() -> Llama:
    hidden, wide = CONFIG.hidden_size, CONFIG.intermediate_size
    layers = [
        Layer(
            norm(),
            half(3 * hidden, hidden),
            half(hidden, hidden),
            norm(),
            GatedLinear(half(2 * wide, hidden)),
            half(hidden, wide),
        )
        for _ in range(LAYERS)
    ]
    embedding = torch.randn(CONFIG.vocab_size, hidden, device="cuda").half()
    return Llama(CONFIG, 2048, embedding, layers, norm(), half(CONFIG.vocab_size, hidden))


def step_seconds(llama: Llama, sequences: int) -> float:
    """Median time of a step of so many sequences."""
    cache = llama.make_cache(sequences)
    held = [cache.acquire() for _ in range(sequences)]
    times = []
    with torch.inference_mode():
        prompt = torch.zeros(CONTEXT * sequences, dtype=torch.long, device="cuda")
        llama.forward(prompt, [Segment(one, CONTEXT) for one in held])
        token = torch.zeros(sequences, dtype=torch.long, device="cuda")
        for _ in range(STEPS):
            start = time.perf_counter()
            llama.forward(token, [Segment(one, 1) for one in held]).max(-1)[1].tolist()
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {LAYERS} layers")
    llama = model()
    step_seconds(llama, 4)  # the first steps load kernels and choose among them
    for sequences in (1, 4, 1, 4):
        step = step_seconds(llama, sequences)
        layer = step / LAYERS * 1e6
        print(f"  {sequences} at once: {step * 1e3:.2f} ms a step, {layer:.0f} us a layer")


if __name__ == "__main__":
    main()
