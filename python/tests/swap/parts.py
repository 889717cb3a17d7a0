# SPDX-License-Identifier: Apache-2.0
"""Shared by the programs of this folder: tiny random models and data, and how a program returns
results. Nothing here knows which package `accelerate` is."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

SEED = 11
WORDS = [f"w{number}" for number in range(40)]
CHAT = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} [EOS] {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
# Values that depend on time.
TIMED = ("runtime", "per_second", "step_time", "preparation_time")


_scenarios: dict[str, Callable[[Path], dict]] = {}


def scenario(function: Callable[[Path], dict]) -> Callable[[Path], dict]:
    """Marks what `main` runs by name: a function from a folder to the values to compare."""
    _scenarios[function.__name__] = function
    return function


def num_processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def made_once(path: Path, write: Callable[[Path], object]) -> Path:
    """A folder that the first process writes and the others wait for: once processes are connected,
    libraries write only in the first one."""
    if os.environ.get("RANK", "0") == "0":
        write(path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
    while not path.exists():
        time.sleep(0.01)
    return path


def digest(module: torch.nn.Module | dict[str, torch.Tensor]) -> dict[str, str]:
    """Every tensor of a state as a hash."""
    state = module if isinstance(module, dict) else module.state_dict()
    return {name: digest_of(tensor) for name, tensor in sorted(state.items())}


def norms(module: torch.nn.Module) -> dict[str, float]:
    """Every weight as a norm, if bits may differ."""
    return {name: value.norm().item() for name, value in module.named_parameters()}


def digest_of(tensor: torch.Tensor) -> str:
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    bits = hashlib.sha256(data.numpy()).hexdigest()[:16]
    return f"{str(tensor.dtype)[6:]}{list(tensor.shape)} {bits}"


def untimed(values: dict) -> dict:
    return {
        name: value for name, value in values.items() if not any(part in name for part in TIMED)
    }


def history(trainer) -> list[dict]:
    """Everything that was logged: losses, norms, learning rates, metrics."""
    return [untimed(values) for values in trainer.state.log_history]


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[EOS]", "user", "assistant"]
    vocabulary = {word: number for number, word in enumerate(special + WORDS)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token="[EOS]",
    )
    made.chat_template = CHAT
    return made


def sentence(number: int, length: int | None = None) -> str:
    length = 3 + number * 7 % 9 if length is None else length
    return " ".join(WORDS[(number * 5 + place * place) % len(WORDS)] for place in range(length))


def causal_model(**settings):
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(SEED)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=48,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            attention_dropout=0.1,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=4,
            **settings,
        )
    )


def encoder_settings() -> dict:
    return {
        "vocab_size": 48,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
    }


def classifier():
    from transformers import BertConfig, BertForSequenceClassification, set_seed

    set_seed(SEED)
    return BertForSequenceClassification(BertConfig(**encoder_settings(), num_labels=3))


def main() -> None:
    """`program FOLDER NAME...`: writes the result of each scenario to FOLDER/NAME.RANK. A single
    process continues after a failure; with several, the others would wait for it."""
    import accelerate
    from accelerate.state import AcceleratorState, GradientState

    assert accelerate.__file__.startswith(os.environ["SWAP_PACKAGE"]), accelerate.__file__
    torch.set_num_threads(1)
    folder = Path(sys.argv[1]).absolute()
    variables = dict(os.environ)
    for name in sys.argv[2:]:
        work = folder / f"{name}_work"
        work.mkdir(parents=True, exist_ok=True)
        # Each scenario starts like a new program.
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        # transformers 4 leaves the precision in a variable.
        os.environ.clear()
        os.environ.update(variables)
        try:
            found = {"is": _scenarios[name](work)}
        except BaseException:
            found = {"failed": traceback.format_exc()}
        path = folder / f"{name}.{os.environ.get('RANK', '0')}"
        path.with_suffix(path.suffix + ".part").write_text(json.dumps(found))
        path.with_suffix(path.suffix + ".part").rename(path)
        if "failed" in found:
            print(found["failed"], file=sys.stderr, flush=True)
            if num_processes() > 1:
                os._exit(1)
