# SPDX-License-Identifier: Apache-2.0
"""Transformers' side of the tests of models.

  make OUT CASE...   for each case a folder that transformers saved, and beside
                     it `expected.safetensors`: inputs, logits, loss, gradients,
                     parameters after three steps of AdamW, generated tokens
  real MODEL OUT     embeddings of a few sentences by a real folder
  check OURS OUT     loads what we saved of the folders that `make` wrote

`make tests/reference/models bert_tiny` writes the reference that is committed.
"""
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM,
    AutoModelForSequenceClassification)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)

AUTO = {"base": AutoModel, "classifier": AutoModelForSequenceClassification,
        "masked": AutoModelForMaskedLM, "causal": AutoModelForCausalLM}

BERT = dict(model_type="bert", vocab_size=61, hidden_size=24, num_hidden_layers=2,
            num_attention_heads=4, intermediate_size=40, max_position_embeddings=20,
            initializer_range=0.2)
DISTILBERT = dict(model_type="distilbert", vocab_size=61, dim=24, n_layers=2, n_heads=4,
                  hidden_dim=40, max_position_embeddings=20, initializer_range=0.2)
GPT2 = dict(model_type="gpt2", vocab_size=61, n_embd=24, n_layer=2, n_head=4,
            n_positions=32, initializer_range=0.2, bos_token_id=2, eos_token_id=3,
            pad_token_id=0)
LLAMA = dict(model_type="llama", vocab_size=61, hidden_size=24, intermediate_size=40,
             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=32, initializer_range=0.2, bos_token_id=2,
             eos_token_id=3, pad_token_id=0)
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16)

# Name: kind of head, configuration.
CASES = {
    "bert_tiny": ("classifier", BERT | dict(hidden_size=8, num_hidden_layers=1,
                                            num_attention_heads=2, intermediate_size=12,
                                            vocab_size=31)),
    "bert_base": ("base", BERT),
    "bert_classifier": ("classifier", BERT | dict(num_labels=3)),
    "bert_regression": ("classifier", BERT | dict(num_labels=1)),
    "bert_multi_label": ("classifier", BERT | dict(
        num_labels=3, problem_type="multi_label_classification", hidden_act="relu")),
    "bert_masked": ("masked", BERT),
    "bert_untied": ("masked", BERT | dict(tie_word_embeddings=False)),
    "distilbert_base": ("base", DISTILBERT),
    "distilbert_classifier": ("classifier", DISTILBERT | dict(num_labels=3)),
    "distilbert_masked": ("masked", DISTILBERT),
    "roberta_base": ("base", BERT | dict(model_type="roberta", pad_token_id=1)),
    "roberta_classifier": ("classifier", BERT | dict(
        model_type="roberta", pad_token_id=1, num_labels=3)),
    "roberta_masked": ("masked", BERT | dict(model_type="roberta", pad_token_id=1)),
    "gpt2_base": ("base", GPT2),
    "gpt2_classifier": ("classifier", GPT2 | dict(num_labels=3)),
    "gpt2_causal": ("causal", GPT2),
    "llama_base": ("base", LLAMA),
    "llama_classifier": ("classifier", LLAMA | dict(num_labels=3)),
    "llama_causal": ("causal", LLAMA | dict(rope_parameters=LLAMA3)),
    "llama_tied": ("causal", LLAMA | dict(
        tie_word_embeddings=True, num_key_value_heads=1, attention_bias=True,
        rope_parameters=dict(rope_type="default", rope_theta=100.0))),
}


def make_inputs(kind, config, generator):
    """Three padded sequences: on the right, as in training."""
    pad = config.pad_token_id
    ids = torch.randint(4, config.vocab_size, (3, 9), generator=generator)
    mask = torch.ones_like(ids)
    for row, length in enumerate((9, 4, 6)):
        ids[row, length:] = pad
        mask[row, length:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if config.model_type == "bert":
        inputs["token_type_ids"] = torch.randint(0, 2, (3, 9), generator=generator)
    if kind == "classifier":
        if config.num_labels == 1:
            inputs["labels"] = torch.randn(3, generator=generator)
        elif config.problem_type == "multi_label_classification":
            inputs["labels"] = torch.randint(0, 2, (3, 3), generator=generator).float()
        else:
            inputs["labels"] = torch.randint(0, config.num_labels, (3,), generator=generator)
    elif kind in ("masked", "causal"):
        inputs["labels"] = torch.where(mask == 1, ids, -100)
    return inputs


def loss_of(kind, outputs):
    return outputs.last_hidden_state.square().mean() if kind == "base" else outputs.loss


def write_generated(model, expected, generator):
    """Greedy and drawn continuations of prompts padded on the left."""
    ids = torch.randint(4, model.config.vocab_size, (3, 7), generator=generator)
    mask = torch.ones_like(ids)
    for row, length in enumerate((7, 3, 5)):
        ids[row, :-length] = model.config.pad_token_id
        mask[row, :-length] = 0
    expected["prompt.input_ids"], expected["prompt.attention_mask"] = ids, mask
    settings = dict(attention_mask=mask, max_new_tokens=16)
    # Greedy tiny models repeat themselves: one of their tokens ends a sequence.
    greedy = model.generate(ids, do_sample=False, eos_token_id=None, **settings)
    expected["generated.greedy"] = greedy
    stop = int(greedy[1, 9])
    expected["generated.stop"] = torch.tensor(stop)
    expected["generated.stopped"] = model.generate(
        ids, do_sample=False, eos_token_id=stop, **settings)
    torch.manual_seed(5)
    expected["generated.drawn"] = model.generate(
        ids, do_sample=True, eos_token_id=None, temperature=0.7, top_k=20, top_p=0.9,
        **settings)


def make(out, name):
    kind, values = CASES[name]
    values = dict(values)
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    torch.manual_seed(list(CASES).index(name))
    model = AUTO[kind].from_config(config)
    with torch.no_grad():  # Biases and norms too: zeros and ones hide mistakes.
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    folder = pathlib.Path(out, name)
    model.save_pretrained(folder)
    model.eval()
    generator = torch.Generator().manual_seed(7)
    inputs = make_inputs(kind, config, generator)
    outputs = model(**inputs, output_hidden_states=True)
    expected = {f"inputs.{k}": v for k, v in inputs.items()}
    expected["output"] = outputs[0] if kind == "base" else outputs.logits
    if kind == "base" and outputs.get("pooler_output") is not None:
        expected["pooled"] = outputs.pooler_output
    for i, states in enumerate(outputs.hidden_states):
        expected[f"hidden.{i}"] = states
    loss = loss_of(kind, outputs)
    expected["loss"] = loss
    loss.backward()
    for key, parameter in model.named_parameters():
        if parameter.grad is not None:
            expected[f"grad.{key}"] = parameter.grad.clone()
    if kind == "causal":
        write_generated(model, expected, generator)
    model.zero_grad()
    # With AdamW's usual 1e-8, gradients that are rounding alone (of key biases,
    # which softmax does not see) would move parameters by lr in any direction.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)
    for _ in range(3):
        loss_of(kind, model(**inputs)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for key, parameter in model.named_parameters():
        expected[f"step3.{key}"] = parameter
    model = AUTO[kind].from_pretrained(folder, attn_implementation="eager").eval()
    for i, weights in enumerate(model(**inputs, output_attentions=True).attentions):
        expected[f"attention.{i}"] = weights
    save_file({k: v.detach().clone().contiguous() for k, v in expected.items()},
              folder / "expected.safetensors")


SENTENCES = [
    "The compiler reports a syntax error in the program.",
    "My program does not compile because of an error.",
    "Bread needs flour, water, salt and time.",
    "She baked a cake for the party.",
    "The team won the match in the last minute.",
    "He ran the marathon in under three hours.",
]


def real(model_folder, out):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    model = AutoModel.from_pretrained(model_folder).eval()
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1).float()
    embeddings = (hidden * mask).sum(1) / mask.sum(1)
    save_file({**{f"inputs.{k}": v for k, v in inputs.items()}, "embeddings": embeddings},
              out)


def check(ours, theirs):
    """Transformers loads what we saved: the same tensors, nothing missing."""
    kind = CASES[ours.name][0]
    model, info = AUTO[kind].from_pretrained(ours, output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[problem], (ours.name, problem, info[problem])
    original = AUTO[kind].from_pretrained(theirs).state_dict()
    assert model.state_dict().keys() == original.keys(), ours.name
    for key, value in model.state_dict().items():
        assert torch.equal(value, original[key]), (ours.name, key)
    assert load_file(ours / "model.safetensors").keys() == load_file(
        theirs / "model.safetensors").keys(), ours.name
    expected = load_file(theirs / "expected.safetensors")
    inputs = {k[7:]: v for k, v in expected.items() if k.startswith("inputs.")}
    output = model.eval()(**inputs)
    output = output[0] if kind == "base" else output.logits
    assert torch.equal(output, expected["output"]), ours.name


def main():
    command, *arguments = sys.argv[1:]
    if command == "make":
        for name in arguments[1:] or CASES:
            make(arguments[0], name)
    elif command == "real":
        real(*arguments)
    elif command == "check":
        ours, theirs = map(pathlib.Path, arguments)
        names = sorted(folder.name for folder in ours.iterdir())
        for name in names:
            check(ours / name, theirs / name)
        print(len(names))
    else:
        sys.exit(f"unknown command {command}")


main()
