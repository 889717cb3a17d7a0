# SPDX-License-Identifier: Apache-2.0
"""The peer's side of model_step_gpu.py: transformers with Hugging Face Accelerate.

  model_step_gpu_peer.py bert|gpt2 BATCH TOKENS DROPOUT STEPS eager|default|reduce-overhead

The last argument but `eager` is a mode of torch.compile.
"""
import statistics
import sys
import time

sys.path.pop(0)  # This folder has a safetensors.py, which is not the package.
import torch
from accelerate import Accelerator
from transformers import (AutoModelForCausalLM, AutoModelForSequenceClassification, BertConfig,
                          GPT2Config)


def make_model(name, p):
    if name == "bert":
        return AutoModelForSequenceClassification.from_config(BertConfig(
            num_labels=2, hidden_dropout_prob=p, attention_probs_dropout_prob=p))
    return AutoModelForCausalLM.from_config(GPT2Config(resid_pdrop=p, embd_pdrop=p, attn_pdrop=p))


def make_inputs(name, batch, tokens):
    ids = torch.randint(1000, 30000, (batch, tokens))
    if name == "gpt2":
        return {"input_ids": ids, "labels": ids}
    mask = torch.ones(batch, tokens, dtype=torch.long)
    mask[:batch // 4, tokens // 2:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 2, (batch,))}


def main():
    name, batch, tokens, dropout, steps, mode = sys.argv[1:]
    steps = int(steps)
    start = time.perf_counter()
    accelerator = Accelerator(mixed_precision="bf16")
    model = make_model(name, float(dropout))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, fused=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    model.train()
    if mode != "eager":
        model = torch.compile(model, mode=mode)
    inputs = {key: value.to(accelerator.device)
              for key, value in make_inputs(name, int(batch), int(tokens)).items()}

    def run(count):
        begin = time.perf_counter()
        for _ in range(count):
            accelerator.backward(model(**inputs).loss)
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin)

    run(1)
    first = time.perf_counter() - start
    run(9)
    print(statistics.median(run(steps) / steps for _ in range(5)))
    print(f"first step after {first:.1f} s", file=sys.stderr)


main()
