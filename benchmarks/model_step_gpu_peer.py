# SPDX-License-Identifier: Apache-2.0
"""The peer's side of model_step_gpu.py: transformers with Hugging Face Accelerate.

  model_step_gpu_peer.py BATCH TOKENS STEPS
"""
import sys
import time

sys.path.pop(0)  # This folder has a safetensors.py, which is not the package.
import torch
from accelerate import Accelerator
from transformers import AutoModelForSequenceClassification, BertConfig


def main():
    batch, tokens, steps = map(int, sys.argv[1:])
    accelerator = Accelerator(mixed_precision="bf16")
    model = AutoModelForSequenceClassification.from_config(BertConfig(num_labels=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
    model, optimizer = accelerator.prepare(model, optimizer)
    model.train()
    inputs = {"input_ids": torch.randint(1000, 30000, (batch, tokens)),
              "attention_mask": torch.ones(batch, tokens, dtype=torch.long),
              "labels": torch.randint(0, 2, (batch,))}
    inputs["attention_mask"][:batch // 4, tokens // 2:] = 0
    inputs = {name: value.to(accelerator.device) for name, value in inputs.items()}

    def run(count):
        for _ in range(count):
            accelerator.backward(model(**inputs).loss)
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()

    run(10)
    start = time.perf_counter()
    run(steps)
    print(1e3 * (time.perf_counter() - start) / steps)


main()
