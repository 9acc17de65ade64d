"""Multiply FP16 matrices on every GPU at once for the seconds given.

Prints when that began and ended, as JSON, in seconds of the system's monotonic clock.
"""

import json
import sys
import time

import torch

SIDE = 8192
LAUNCHED = 4  # products in flight on each GPU, so that none waits for this loop

gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
factors = [torch.full((SIDE, SIDE), 1e-3, dtype=torch.float16, device=gpu) for gpu in gpus]
products = [torch.empty_like(factor) for factor in factors]
began = time.monotonic()
while time.monotonic() < began + float(sys.argv[1]):
    for _ in range(LAUNCHED):
        for factor, product in zip(factors, products, strict=True):
            torch.matmul(factor, factor, out=product)
    for gpu in gpus:
        torch.cuda.synchronize(gpu)
print(json.dumps({"began": began, "ended": time.monotonic()}))  # noqa: T201
