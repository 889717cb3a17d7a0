# SPDX-License-Identifier: Apache-2.0
"""The peer's side of model_step_gpu.py: transformers with the `accelerate` that Python finds.

  model_step_gpu_peer.py bert|tiny|gpt2|llama BATCH TOKENS DROPOUT STEPS MODE [OPTION...]

MODE is `eager`, a mode of torch.compile (`default`, `reduce-overhead`), or `captured`: the same loop
through `accelerator.capture`. Our package alone has that, `master_weights` (in fp32, with bf16 weights)
and `fused` (`prepare(..., fuse=True)`). `nocache`: models keep no keys and values. `accumulate`: an
update after four micro-batches, in `with accelerator.accumulate(model)`. `tiny`: two layers of 128.
"""
import statistics
import sys
import time

sys.path.pop(0)  # This folder has a safetensors.py, which is not the package.
import torch
from accelerate import Accelerator
from transformers import (AutoModelForCausalLM, AutoModelForSequenceClassification, BertConfig,
                          GPT2Config, LlamaConfig)


def make_model(name, p):
    if name == "bert":
        return AutoModelForSequenceClassification.from_config(BertConfig(
            num_labels=2, hidden_dropout_prob=p, attention_probs_dropout_prob=p))
    if name == "tiny":
        return AutoModelForSequenceClassification.from_config(BertConfig(
            num_labels=2, hidden_dropout_prob=p, attention_probs_dropout_prob=p, hidden_size=128,
            num_hidden_layers=2, num_attention_heads=2, intermediate_size=512))
    if name == "llama":  # As Llama 3.2 1B.
        return AutoModelForCausalLM.from_config(LlamaConfig(
            vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
            num_attention_heads=32, num_key_value_heads=8, head_dim=64, rope_theta=500000.0,
            max_position_embeddings=131072, tie_word_embeddings=True, attention_dropout=p))
    return AutoModelForCausalLM.from_config(GPT2Config(resid_pdrop=p, embd_pdrop=p, attn_pdrop=p))


def make_inputs(name, batch, tokens):
    ids = torch.randint(1000, 30000, (batch, tokens))
    if name not in ("bert", "tiny"):
        return {"input_ids": ids, "labels": ids}
    mask = torch.ones(batch, tokens, dtype=torch.long)
    mask[:batch // 4, tokens // 2:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 2, (batch,))}


def main():
    name, batch, tokens, dropout, steps, mode, *options = sys.argv[1:]
    if unknown := set(options) - {"master_weights", "fused", "nocache", "accumulate"}:
        sys.exit(f"got {sorted(unknown)}, expected master_weights, fused, nocache or accumulate")
    steps = int(steps)
    start = time.perf_counter()
    with_masters = {"master_weights": True} if "master_weights" in options else {}
    accelerator = Accelerator(
        mixed_precision="bf16", gradient_accumulation_steps=4 if "accumulate" in options else 1,
        **with_masters)
    model = make_model(name, float(dropout))
    if "nocache" in options:
        model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, fused=True)
    fused = {"fuse": True} if "fused" in options else {}
    model, optimizer = accelerator.prepare(model, optimizer, **fused)
    model.train()
    if mode not in ("eager", "captured"):
        model = torch.compile(model, mode=mode)
    inputs = {key: value.to(accelerator.device)
              for key, value in make_inputs(name, int(batch), int(tokens)).items()}

    def step(inputs):
        accelerator.backward(model(**inputs).loss)
        optimizer.step()
        optimizer.zero_grad()

    if "accumulate" in options:
        plain = step

        def step(inputs):
            with accelerator.accumulate(model):
                plain(inputs)

    if mode == "captured":
        step = accelerator.capture(step)

    def run(count):
        begin = time.perf_counter()
        for _ in range(count):
            step(inputs)
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin)

    run(1)
    first = time.perf_counter() - start
    run(9)
    print(statistics.median(run(steps) / steps for _ in range(5)))
    print(f"first step after {first:.1f} s, "
          f"at most {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", file=sys.stderr)
    if hasattr(accelerator, "fast_report"):
        print(accelerator.fast_report(), file=sys.stderr)


main()
