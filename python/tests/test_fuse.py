# SPDX-License-Identifier: Apache-2.0
"""`prepare(..., fuse=True)` compared with transformers' own forwards, on the CPU. Both compute the
same sums in another order: in float32 results differ by a few units in the last place, 1e-5 of the
largest value after some layers. The operators that ran are counted, so that a forward that was not
replaced does not pass."""

from __future__ import annotations

import copy
import logging
import pickle
from collections import Counter
from pathlib import Path

import pytest
import ranks
import torch
from accelerate import Accelerator
from accelerate._fuse import language_head, pieces
from accelerate.errors import UsageError
from accelerate.state import AcceleratorState
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
NUM_LAYERS = 3
SIZES = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def gpt2(p=0.0, **others):
    config = transformers.GPT2Config(
        vocab_size=101,
        n_embd=32,
        n_layer=NUM_LAYERS,
        n_head=4,
        n_positions=32,
        resid_pdrop=p,
        embd_pdrop=p,
        attn_pdrop=p,
        bos_token_id=0,
        eos_token_id=0,
        **others,
    )
    return transformers.GPT2LMHeadModel(config)


def bert():
    config = transformers.BertConfig(**SIZES, **NO_DROPOUT, num_labels=3)
    return transformers.BertForSequenceClassification(config)


def masked_bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **NO_DROPOUT))


def roberta():
    config = transformers.RobertaConfig(**SIZES, **NO_DROPOUT)
    return transformers.RobertaForSequenceClassification(config)


def distilbert():
    config = transformers.DistilBertConfig(
        vocab_size=101,
        dim=32,
        hidden_dim=64,
        n_layers=NUM_LAYERS,
        n_heads=4,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
    )
    return transformers.DistilBertForSequenceClassification(config)


def like_llama(kind):
    def make():
        config = kind(
            **SIZES, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2
        )
        return transformers.AutoModelForCausalLM.from_config(config)

    return make


llama = like_llama(transformers.LlamaConfig)
# The operators of a forward with three layers: one norm more than two per layer.
DISTILBERT = {"_add_norm_forward": 7, "_linear_gelu": 3}
# Weights and biases of queries, keys and values are joined.
BERT = DISTILBERT | {"cat": 6}
LLAMA = {"_rms_norm_forward": 7, "_swiglu": 3, "_cross_entropy_forward": 1}
FAMILIES = {
    "gpt2": (gpt2, {"_add_norm_forward": 7, "_linear_gelu": 3, "_cross_entropy_forward": 1}),
    "bert": (bert, BERT),
    # The norm of its head.
    "masked_bert": (masked_bert, BERT | {"_add_norm_forward": 8}),
    "roberta": (roberta, BERT),
    "distilbert": (distilbert, DISTILBERT),
    "llama": (llama, LLAMA | {"_rotate": 6}),
    "mistral": (like_llama(transformers.MistralConfig), LLAMA),
    "qwen2": (like_llama(transformers.Qwen2Config), LLAMA),
    # Norms of queries and keys.
    "qwen3": (like_llama(transformers.Qwen3Config), LLAMA | {"_rms_norm_forward": 13}),
}


class Counting(TorchDispatchMode):
    """Counts which of our operators run, and which of torch's."""

    def __init__(self, *watched):
        super().__init__()
        self.counts = Counter()
        self._watched = watched

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        space, name = function.name().split(".")[0].split("::")
        if space == "accelerate" or name in self._watched:
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def fresh_state():
    torch.manual_seed(3)
    yield
    AcceleratorState._reset_state(True)


def inputs_for(model):
    ids = torch.randint(3, 100, (4, 12))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    if "Classification" in type(model).__name__:
        labels = torch.tensor([0, 1, 1, 0])
    else:
        labels = ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def both(make, **options):
    """A fused model, and a copy that is not."""
    plain = make()
    fused = Accelerator(cpu=True, **options).prepare(copy.deepcopy(plain), fuse=True)
    return fused, plain


def is_fused(model):
    return any(issubclass(type(part), pieces.Piece) for part in model.modules())


def assert_close(got, expected, tolerance=TOLERANCE):
    scale = expected.abs().max().clamp(min=1e-3)
    assert (got - expected).abs().max() / scale < tolerance


def assert_equal_gradients(fused, plain):
    for (name, got), expected in zip(fused.named_parameters(), plain.parameters(), strict=True):
        assert (got.grad is None) == (expected.grad is None), name
        if got.grad is not None:
            assert_close(got.grad, expected.grad)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_results_and_gradients_are_those_of_transformers(family, is_training):
    make, expected = FAMILIES[family]
    fused, plain = both(make)
    inputs = inputs_for(plain)
    outputs = []
    for model in (fused, plain):
        model.train(is_training)
        with Counting(*expected) as counting:
            outputs.append(model(**inputs))
        outputs[-1].loss.backward()
        for name, count in expected.items():
            assert counting.counts[name] == (count if model is fused else 0), name
    assert_close(outputs[0].loss, outputs[1].loss)
    assert_close(outputs[0].logits, outputs[1].logits)
    assert_equal_gradients(fused, plain)


@pytest.mark.parametrize("family", ["gpt2", "masked_bert", "llama"])
def test_blocks_are_checkpointed(family):
    fused, plain = both(FAMILIES[family][0])
    fused.gradient_checkpointing_enable()
    inputs = inputs_for(plain)
    for model in (fused, plain):
        model.train()
        model(**inputs).loss.backward()
    assert_equal_gradients(fused, plain)


class Again(torch.nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, *args, **kwargs):
        return checkpoint(self.block, *args, use_reentrant=False, **kwargs)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_block_may_be_checkpointed_by_hand(family):
    fused, plain = both(FAMILIES[family][0])
    blocks = fused.transformer.h if family == "gpt2" else fused.model.layers
    blocks[1] = Again(blocks[1])
    inputs = inputs_for(plain)
    for model in (fused, plain):
        model(**inputs, use_cache=False).loss.backward()
    assert_equal_gradients(fused, plain)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_loss_counts_what_transformers_counts(family):
    fused, plain = both(FAMILIES[family][0])
    inputs = inputs_for(plain)
    for others in (
        {"num_items_in_batch": 17},
        {"num_items_in_batch": torch.tensor(17)},
        {"shift_labels": inputs["labels"]},
        {"labels": torch.full_like(inputs["labels"], -100), "num_items_in_batch": 17},
    ):
        for model in (fused, plain):
            model.zero_grad()
        losses = [model(**{**inputs, **others}).loss for model in (fused, plain)]
        assert_close(*losses)
        for loss in losses:
            loss.backward()
        assert_equal_gradients(fused, plain)


def packed(model):
    """Two texts of the same row."""
    return {"position_ids": torch.arange(8).repeat(1, 2), "use_cache": False}


def padded(model):
    return {"attention_mask": torch.tensor([[1] * 16, [1] * 9 + [0] * 7])}


@pytest.mark.parametrize(
    "others, is_masked", [(lambda model: {}, False), (packed, True), (padded, True)]
)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_attention_is_given_no_mask_that_says_nothing(family, others, is_masked, monkeypatch):
    fused, plain = both(FAMILIES[family][0])
    # Transformers treats its values as unknown, as during the recording of a CUDA graph.
    monkeypatch.setattr("transformers.masking_utils.is_tracing", lambda *_: True)
    tokens = torch.randint(101, (2, 16))
    masks = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def watched(*args, attn_mask=None, **kwargs):
        masks.append(attn_mask)
        return attention(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    given = {"input_ids": tokens, "labels": tokens, **others(plain)}
    expected = plain(**given)
    masks.clear()
    got = fused(**given)
    assert len(masks) == NUM_LAYERS
    assert all((mask is not None) == is_masked for mask in masks)
    assert_close(got.logits, expected.logits)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_padded_vocabulary_is_not_seen(family, monkeypatch):
    monkeypatch.setattr(language_head, "is_padded", lambda x, kind: True)
    fused, plain = both(FAMILIES[family][0])
    inputs = inputs_for(plain)
    expected = plain(**inputs)
    with Counting("slice_backward") as counting:
        got = fused(**inputs)
        got.loss.backward()
    expected.loss.backward()
    # 101 columns of 128, and the gradient goes to all of them at once.
    assert got.logits.shape == expected.logits.shape and got.logits.stride(-2) == 128
    assert counting.counts["slice_backward"] == 0
    assert_close(got.logits, expected.logits)
    assert_close(got.loss, expected.loss)
    assert_equal_gradients(fused, plain)
    # A custom loss uses the view.
    for model in (fused, plain):
        model.zero_grad()
        model(inputs["input_ids"]).logits.square().mean().backward()
    assert_equal_gradients(fused, plain)


@pytest.mark.parametrize("is_hooked", [False, True])
def test_each_dropout_drops_once(is_hooked):
    fused, _ = both(lambda: gpt2(p=0.5))
    block = fused.transformer.h[-1]
    with torch.no_grad():
        for product in (block.attn.c_proj, block.mlp.c_proj):
            product.weight.zero_()
            product.bias.fill_(1)
    if is_hooked:
        block.attn.register_forward_hook(lambda module, args, output: None)
    block.train()
    with Counting() as counting:
        summed = block(torch.zeros(50, 20, 32))
    assert counting.counts["_linear_gelu"] == 1
    # Each branch is 0 or 2, as often. Six deviations of the mean of 32,000 draws: 0.017.
    for value, share in ((0, 0.25), (2, 0.5), (4, 0.25)):
        assert abs((summed == value).float().mean().item() - share) < 0.017
    block.eval()
    assert torch.equal(block(torch.zeros(2, 3, 32)), torch.full((2, 3, 32), 2.0))


@pytest.mark.parametrize("masters", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "bert", "llama"])
def test_training_in_bf16_goes_as_without(family, masters):
    make = FAMILIES[family][0]
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", master_weights=masters)
    plain = make()
    inputs = inputs_for(plain)
    losses = []
    for model, fuse in ((copy.deepcopy(plain), True), (plain, False)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model, optimizer = accelerator.prepare(model, optimizer, fuse=fuse)
        assert is_fused(model) == fuse
        model.train()
        losses.append([])
        for _ in range(4):
            loss = model(**inputs).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    assert losses[0][-1] < losses[0][0]
    # bf16 has 8 bits.
    assert losses[0] == pytest.approx(losses[1], rel=2**-8)


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize(
    ("device", "is_captured"),
    [
        ("cpu", False),
        pytest.param("cuda", False, marks=GPU),
        pytest.param("cuda", True, marks=GPU),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_in_bf16_lose_no_more_than_without(family, device, is_captured):
    """Both in bf16 compared with transformers' gradients in float32. On a GPU, sequences are long
    enough for a padded vocabulary and for cuDNN's attention."""
    num_tokens = 600 if device == "cuda" else 12
    exact = FAMILIES[family][0]()
    exact.config.use_cache = False
    if "gpt2" in family:
        exact.transformer.wpe = torch.nn.Embedding(num_tokens, 32)
    elif "bert" in family:
        num_tokens = min(num_tokens, 500)
    ids = torch.randint(3, 100, (2, num_tokens), device=device)
    is_classifier = "Classification" in type(exact).__name__
    labels = torch.tensor([1, 0], device=device) if is_classifier else ids
    inputs = {"input_ids": ids, "labels": labels}
    accelerator = Accelerator(cpu=device == "cpu")
    exact = exact.to(device).train()
    plain = copy.deepcopy(exact).bfloat16()
    fused = accelerator.prepare(copy.deepcopy(plain), fuse=True)
    gradients = []
    for model in (exact, plain, fused):

        def step(inputs, model=model):
            model.zero_grad(set_to_none=False)
            loss = model(**inputs).loss
            accelerator.backward(loss)
            return loss

        if is_captured and model is fused:
            step = accelerator.capture(step)
            for _ in range(5):
                step(inputs)
        loss = step(inputs)
        given = [p.grad.flatten().float() for p in model.parameters() if p.grad is not None]
        gradients.append(torch.cat([*given, loss.detach().float().view(1)]))
    errors = [(got - gradients[0]).norm() / gradients[0].norm() for got in gradients[1:]]
    # Both are rounded to 8 bits in different places.
    assert errors[1] < 1.5 * errors[0] + 2**-8, errors


@pytest.mark.parametrize("family", FAMILIES)
def test_names_classes_and_copies_are_transformers(family, tmp_path):
    fused, plain = both(FAMILIES[family][0])
    fused.eval(), plain.eval()
    inputs = inputs_for(plain)
    assert list(fused.state_dict()) == list(plain.state_dict())
    kinds = [part.__class__ for part in plain.modules()]
    assert [part.__class__ for part in fused.modules()] == kinds
    fused.save_pretrained(tmp_path)
    for other in (
        copy.deepcopy(fused),
        pickle.loads(pickle.dumps(fused)),
        type(plain).from_pretrained(tmp_path),
    ):
        assert [type(part) for part in other.modules()] == kinds
        with Counting() as counting:
            assert torch.equal(other(**inputs).loss, plain(**inputs).loss)
        assert not counting.counts


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_tokens_and_hidden_states_are_transformers(family):
    fused, plain = both(FAMILIES[family][0])
    fused.eval(), plain.eval()
    ids = inputs_for(plain)["input_ids"]
    for use_cache in (True, False):
        options = {"max_new_tokens": 6, "do_sample": False, "use_cache": use_cache}
        tokens = [model.generate(ids, **options, pad_token_id=0) for model in (fused, plain)]
        assert torch.equal(*tokens)
    states = [model(ids, output_hidden_states=True).hidden_states for model in (fused, plain)]
    assert len(states[0]) == len(states[1]) == NUM_LAYERS + 1
    for got, expected in zip(*states):
        assert_close(got, expected)


@pytest.mark.parametrize(
    ("family", "path"),
    [
        ("gpt2", "transformer.h.1.mlp.act"),
        ("gpt2", "transformer.h.1.ln_2"),
        ("bert", "bert.encoder.layer.1.output.dropout"),
        ("bert", "bert.encoder.layer.1.intermediate"),
        ("distilbert", "distilbert.transformer.layer.1.ffn.lin2"),
        ("llama", "model.layers.1.post_attention_layernorm"),
        ("llama", "model.layers.1.mlp.act_fn"),
    ],
)
def test_hooks_of_parts_are_called(family, path):
    fused, plain = both(FAMILIES[family][0])
    inputs = inputs_for(plain)
    seen = []
    for model in (fused, plain):
        part = model.get_submodule(path)
        part.register_forward_hook(lambda module, args, output: output * 2)
        part.register_forward_hook(lambda module, args, output: seen.append(output))
    losses = [model(**inputs).loss for model in (fused, plain)]
    assert len(seen) == 2
    assert_close(*seen)
    assert_close(*losses)


def test_a_part_that_came_since_is_called():
    fused, _ = both(gpt2)
    calls = []

    class Other(torch.nn.Linear):
        def forward(self, x):
            calls.append(x.shape)
            return super().forward(x)

    fused.transformer.h[0].mlp.c_fc = Other(32, 128)
    fused(**inputs_for(fused))
    assert len(calls) == 1


def blocks_of(model):
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def overwrite(module, args, output):
    output.data[:, -1] = 0.5


def write(module, args, output):
    output[:, -1] = 0.5


def write_into_given(module, args, kwargs):
    (args[0] if args else kwargs["hidden_states"]).mul_(0.5)


@pytest.mark.parametrize("edit", [overwrite, write, write_into_given])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_what_a_hook_of_a_block_writes_is_what_the_next_one_reads(family, edit):
    results = []
    fused, plain = both(FAMILIES[family][0])
    given = inputs_for(plain)
    for model in (fused, plain):
        if edit is write_into_given:
            blocks_of(model)[1].register_forward_pre_hook(edit, with_kwargs=True)
        else:
            blocks_of(model)[0].register_forward_hook(edit)
        output = model(**given)
        output.loss.backward()
        results.append(output.logits)
    assert_close(*results)
    assert_equal_gradients(fused, plain)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_blocks_that_are_called_one_by_one_read_what_they_are_given(family):
    results = []
    for model in both(FAMILIES[family][0]):
        x = torch.linspace(-1, 1, 2 * 16 * 32).view(2, 16, 32)
        given = {}
        if family == "llama":
            given["position_embeddings"] = model.model.rotary_emb(x, torch.arange(16)[None])
        for block in blocks_of(model):
            x = block(x, **given)
            x.data.mul_(0.5)
        results.append(x)
    assert_close(*results)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_layer_is_called_without_a_mask(family):
    fused, _ = both(FAMILIES[family][0])
    x = torch.randn(2, 16, 32)
    angles = fused.model.rotary_emb(x, torch.arange(16)[None])
    assert fused.model.layers[0](x, position_embeddings=angles).shape == x.shape


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_hooks_of_the_head_change_gradients(family, padded, monkeypatch):
    monkeypatch.setattr(language_head, "is_padded", lambda x, kind: padded)
    fused, plain = both(FAMILIES[family][0])
    given = inputs_for(plain)
    for model in (fused, plain):
        model.get_output_embeddings().register_full_backward_hook(
            lambda module, of_input, of_output: (2 * of_input[0],)
        )
        model(**given).loss.backward()
    assert_equal_gradients(fused, plain)


def test_an_unused_norm_has_no_gradient():
    for model in both(gpt2):
        model(torch.arange(8)[None], output_hidden_states=True).hidden_states[1].sum().backward()
        assert model.transformer.h[0].ln_2.weight.grad is not None
        assert model.transformer.h[1].ln_1.weight.grad is None
        assert model.transformer.ln_f.bias.grad is None


@pytest.mark.parametrize("family", ["gpt2", "bert", "distilbert"])
@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, torch.nn.Linear])
@pytest.mark.parametrize("is_before", [True, False])
def test_parts_without_a_bias_run_as_they_are(family, kind, is_before):
    def without(model):
        for part in model.modules():
            if isinstance(part, kind):
                part.bias = None
        return model

    make = FAMILIES[family][0]
    fused, plain = both((lambda: without(make())) if is_before else make)
    given = inputs_for(plain)
    for model in (fused, plain):
        without(model)(**given).loss.backward()
    assert_equal_gradients(fused, plain)


def test_an_embedding_has_the_options_of_now():
    fused, plain = both(gpt2)
    given = inputs_for(plain)
    for model in (fused, plain):
        model.transformer.wte.scale_grad_by_freq = True
        model(**given).loss.backward()
    assert_equal_gradients(fused, plain)


@pytest.mark.parametrize("value", [None, 1, "no"])
def test_fuse_is_true_or_false(value):
    with pytest.raises(UsageError, match=r"\[prepare\] fuse is .*, expected True or False"):
        Accelerator(cpu=True).prepare(gpt2(), fuse=value)


def test_a_model_inside_of_a_module_is_fused_and_again_harmlessly(caplog):
    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.own = gpt2(), bert(), torch.nn.LayerNorm(4)

    accelerator = Accelerator(cpu=True)
    model = Both()
    with caplog.at_level(logging.INFO):
        prepared = accelerator.prepare(model, fuse=True)
        assert accelerator.prepare(prepared, fuse=True) is prepared
    lines = [record.getMessage() for record in caplog.records if "Fused" in record.getMessage()]
    assert len(lines) == 2 and lines[0] == lines[1]
    for count in ("3 GPT2Block", "3 BertLayer", "14 LayerNorm", "1 loss"):
        assert count in lines[0]
    assert type(model.own) is torch.nn.LayerNorm
    assert accelerator.unwrap_model(prepared) is model


def test_what_cannot_be_fused_is_refused_before_it_is_prepared():
    accelerator = Accelerator(cpu=True)
    plain = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    with pytest.raises(
        UsageError, match=r"^\[prepare\] fuse=True found nothing to fuse in Sequential"
    ):
        accelerator.prepare(plain, fuse=True)
    with pytest.raises(UsageError, match=r"^\[prepare\] fuse=True needs a model"):
        accelerator.prepare(torch.optim.SGD(plain.parameters()), fuse=True)
    with pytest.raises(
        UsageError, match=r"^\[prepare\] fuse=True does not work with a compiled model"
    ):
        accelerator.prepare(torch.compile(gpt2()), fuse=True)
    assert not accelerator._models


@pytest.mark.parametrize("sharded", [False, True])
def test_two_processes_train_as_without(tmp_path, sharded):
    words = (str(Path(__file__).parent), "sharded" if sharded else "whole")
    answers = ranks.run_ours("fuse/fused_and_plain.py", tmp_path, *words)
    assert answers[0] == answers[1]
    for family in ("gpt2", "bert", "llama"):
        fused, plain = (torch.tensor(answers[0][f"{family} {fuse}"]) for fuse in (True, False))
        assert_close(fused, plain, 1e-4)
        assert not torch.equal(fused[0], fused[-1])
