# SPDX-License-Identifier: Apache-2.0
"""Loads a model to the disk and generates tokens from there, with whichever package `accelerate` is.
Prints the seconds of loading, tokens per second and the peak memory in MB. big_model.py starts it."""

import json
import pathlib
import resource
import sys
import time

sys.path.pop(0)  # A file of this folder bears the name of the package safetensors.
import torch
from accelerate import init_empty_weights, load_checkpoint_and_dispatch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

# The original cannot read safetensors files to the disk alone.
DEVICE_MAP = {
    "model.embed_tokens": "disk", "model.layers": "disk", "lm_head": "disk",
    "model.norm": "cpu", "model.rotary_emb": "cpu",
}


def make_config(layers):
    return LlamaConfig(
        vocab_size=8192, hidden_size=1024, intermediate_size=2816, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=16, tie_word_embeddings=False,
    )


def write(folder, layers):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(make_config(layers)).to(torch.bfloat16)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", {"format": "pt"})


def measure(folder, offload, layers, tokens):
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(make_config(layers), dtype=torch.bfloat16)
    start = time.perf_counter()
    model = load_checkpoint_and_dispatch(
        model, str(folder), device_map=DEVICE_MAP, offload_folder=str(offload))
    load = time.perf_counter() - start
    model.eval()
    ids = torch.tensor([[1, 5, 9, 2]])
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.no_grad():
        model.generate(ids, max_new_tokens=2, **options)
        start = time.perf_counter()
        answer = model.generate(ids, max_new_tokens=tokens, **options)
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"load": load, "seconds_per_token": seconds / tokens, "peak_mb": peak,
            "tokens": answer[0].tolist()}


if __name__ == "__main__":
    torch.set_num_threads(2)
    folder, layers = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    if sys.argv[3] == "write":
        write(folder, layers)
    else:
        print(json.dumps(measure(folder, pathlib.Path(sys.argv[3]), layers, int(sys.argv[4]))))
