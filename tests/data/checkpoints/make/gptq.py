"""Checkpoints by GPTQModel: GPTQMODEL_CPU_WORKERS=2 python gptq.py, with requirements-gptq.txt."""

import os
import shutil
import tempfile

import torch
from gptqmodel import GPTQModel, QuantizeConfig
from tiny import ROOT, SHOWN, finish, llama, write_tokenizer

CASES = {
    "gptq-sym": {"bits": 4, "sym": True, "desc_act": False},
    "gptq-actorder": {"bits": 4, "sym": True, "desc_act": True},
    "gptq-asym": {"bits": 4, "sym": False, "desc_act": False},
    "gptq-v2": {"bits": 4, "sym": False, "desc_act": True, "format": "gptq_v2"},
    "gptq-int8": {"bits": 8, "sym": True, "desc_act": False},
    "gptq-int3": {"bits": 3, "sym": True, "desc_act": False},
}


def main() -> None:
    order = torch.Generator().manual_seed(3)
    tokens = torch.randint(256, (64, 64), generator=order)
    samples = [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in tokens]
    with tempfile.TemporaryDirectory() as plain:
        llama(torch.float16).save_pretrained(plain)
        write_tokenizer(plain)
        os.chdir(plain)  # where the library leaves its logs
        for name, config in CASES.items():
            config = QuantizeConfig(group_size=32, offload_to_disk=False, **config)
            model = GPTQModel.load(plain, config, device="cpu")
            model.quantize(samples, batch_size=8)
            directory = ROOT / name
            shutil.rmtree(directory, ignore_errors=True)
            model.save(directory)
            back = GPTQModel.load(
                directory, device="cpu", backend="torch", dtype=torch.float16
            ).model
            expected = {m: back.get_submodule(m).dequantize_weight().T for m in SHOWN}
            for name in ("tokenizer.json", "tokenizer_config.json", "quant_log.csv"):
                (directory / name).unlink()
            finish(directory.name, "gptq", expected, "gptqmodel", "torch", "transformers")


if __name__ == "__main__":
    main()
