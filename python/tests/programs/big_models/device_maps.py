# SPDX-License-Identifier: Apache-2.0
"""Device maps of random models and memory limits, and of transformers' models; runs with either
package. Arguments: the first random case and the number of cases."""

from __future__ import annotations

import json
import random
import sys
import warnings
from typing import Any

import torch
from accelerate import init_empty_weights
from accelerate.utils import modeling


class Layer(torch.nn.Module):
    """A module with tensors of its own."""


class Block(torch.nn.Module):
    pass


class Stack(torch.nn.Module):
    pass


KINDS = (Layer, Block, Stack)
DTYPES = (torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64)
# Names within names, because the original compares parts of names.
NAMES = ("a", "b", "h", "h1", "layers", "0", "1", "11", "attn", "mlp", "head")


def add_tensors(module: torch.nn.Module, rng: random.Random, tied: list) -> None:
    for name in rng.sample(("weight", "bias", "scale"), rng.randint(0, 2)):
        if tied and rng.random() < 0.12:
            parameter = rng.choice(tied)
        else:
            shape = [rng.randint(1, 12) for _ in range(rng.randint(0, 2))]
            parameter = torch.nn.Parameter(torch.empty(shape, dtype=rng.choice(DTYPES)))
            tied.append(parameter)
        module.register_parameter(name, parameter)
    if rng.random() < 0.3:
        dtype = rng.choice((torch.float32, torch.int64, torch.bool))
        size = rng.choice((8, 16, 5))
        module.register_buffer("mask", torch.empty(size, dtype=dtype), rng.random() < 0.5)


def tree(rng: random.Random, depth: int, shared: list, tied: list) -> torch.nn.Module:
    module = rng.choice(KINDS)()
    if depth == 0 or rng.random() < 0.5:
        add_tensors(module, rng, tied)
    for name in rng.sample(NAMES, rng.randint(1, 4)) if depth > 0 else ():
        if shared and rng.random() < 0.05:
            module.add_module(name, rng.choice(shared))
        else:
            child = tree(rng, depth - 1 if rng.random() < 0.8 else 0, shared, tied)
            shared.append(child)
            module.add_module(name, child)
    return module


def case_of(seed: int) -> tuple[torch.nn.Module, dict, dict]:
    """The model, its memory, and the options of its map."""
    rng = random.Random(seed)
    with torch.device("meta"):
        model = tree(rng, rng.randint(1, 4), [], [])
    total = int(modeling.compute_module_sizes(model)[""])
    num_devices = rng.choice((0, 1, 1, 2, 2, 3, 4))
    memory: dict[Any, Any] = {
        index: int(total * rng.uniform(0, 1.2) / max(num_devices, 1))
        for index in range(num_devices)
    }
    if rng.random() < 0.8:
        memory["cpu"] = int(total * rng.uniform(0, 1.2))
    if rng.random() < 0.1:
        memory["disk"] = total
    if not memory:
        memory["cpu"] = total
    names = [name for name, _ in model.named_parameters()]
    options: dict[str, Any] = {}
    if rng.random() < 0.5:
        options["no_split_module_classes"] = rng.sample(
            ["Layer", "Block", "Stack"], rng.randint(1, 2)
        )
    if rng.random() < 0.3:
        options["dtype"] = rng.choice(("float16", torch.float32, torch.int8))
    if names and rng.random() < 0.2:
        chosen = rng.sample(names, min(2, len(names)))
        options["special_dtypes"] = {
            name: rng.choice((torch.float32, torch.int8)) for name in chosen
        }
    return model, memory, options


def result_of(function, *args, **kwargs) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = function(*args, **kwargs)
        except (IndexError, AttributeError, KeyError, RuntimeError) as error:
            return f"error: {type(error).__name__}"
    # The original writes whole numbers like 8.0 if the model has a bool tensor.
    warned = [str(w.message).replace(".0 bytes", " bytes") for w in caught]
    warned = [text for text in warned if "requires" in text]
    return sorted((str(key), item) for key, item in value.items()), warned


def answers_of(model: torch.nn.Module, memory: dict, options: dict, rng: random.Random) -> dict:
    answers = {}
    for name in ("offload_buffers", "fallback_allocation", ""):
        more = {name: True} if name else {"clean_result": rng.random() < 0.7}
        answers[f"map {name}"] = result_of(
            modeling.infer_auto_device_map, model, dict(memory), **options, **more
        )
    for low_zero in (False, True):
        answers[f"balanced {low_zero}"] = result_of(
            modeling.get_balanced_memory, model, dict(memory), **options, low_zero=low_zero
        )
    sizes = modeling.compute_module_sizes(
        model, dtype=options.get("dtype"), special_dtypes=options.get("special_dtypes")
    )
    answers["sizes"] = list(sizes.items())
    answers["buffers"] = modeling.compute_module_total_buffer_size(model)
    answers["leaves"] = sorted(modeling.get_module_leaves(sizes))
    answers["tied"] = sorted(modeling.find_tied_parameters(model))
    parts = list(model.named_children())
    unsplit = options.get("no_split_module_classes", [])
    answers["largest"] = modeling.get_max_layer_size(parts, sizes, unsplit)
    answers["maximum"] = modeling.calculate_maximum_sizes(model)
    try:
        name, module, rest = modeling.fallback_allocate(
            list(parts), sizes, int(sizes[""]) // 3, unsplit, answers["tied"]
        )
        kind = None if module is None else type(module).__name__
        answers["fallback"] = [name, kind, [(n, type(m).__name__) for n, m in rest]]
    except IndexError:
        answers["fallback"] = "error: IndexError"
    return answers


def random_answers(first: int, count: int) -> dict:
    found = {}
    for seed in range(first, first + count):
        found[seed] = answers_of(*case_of(seed), random.Random(seed))
    return found


def transformers_models() -> dict[str, torch.nn.Module]:
    import transformers as t

    small = {"num_attention_heads": 4, "vocab_size": 99, "intermediate_size": 64, "hidden_size": 32}
    configs = {
        "llama": t.LlamaConfig(num_hidden_layers=5, **small),
        "qwen2": t.Qwen2Config(num_hidden_layers=4, tie_word_embeddings=True, **small),
        "gpt2": t.GPT2Config(n_layer=4, n_embd=32, n_head=4, vocab_size=99),
        "t5": t.T5Config(
            num_layers=2,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_heads=4,
            vocab_size=99,
            decoder_start_token_id=0,
        ),
        "bert": t.BertConfig(num_hidden_layers=3, **small),
        "opt": t.OPTConfig(num_hidden_layers=3, ffn_dim=64, **small),
    }
    models = {}
    for name, config in configs.items():
        kind = {"t5": t.AutoModelForSeq2SeqLM, "bert": t.AutoModelForMaskedLM}
        with init_empty_weights():
            models[name] = kind.get(name, t.AutoModelForCausalLM).from_config(config)
        models[name].tie_weights()
    return models


def transformers_answers() -> dict:
    found = {}
    for name, model in transformers_models().items():
        total = int(modeling.compute_module_sizes(model)[""])
        unsplit = list(getattr(model, "_no_split_modules", None) or [])
        for number, share in enumerate((0.1, 0.35, 0.6, 0.9, 1.5)):
            for memory in (
                {"cpu": int(total * share)},
                {0: int(total * share), "cpu": total},
                {0: int(total * share / 2), 1: int(total * share / 2), "cpu": total // 3},
            ):
                options = {"no_split_module_classes": unsplit}
                key = f"{name} {number} {len(memory)}"
                found[key] = answers_of(model, memory, options, random.Random(number))
    return found


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:3])
    found = random_answers(first, count)
    if first == 0:
        found |= transformers_answers()
    print(json.dumps(found))
