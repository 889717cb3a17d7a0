# SPDX-License-Identifier: Apache-2.0
import torch
import transformers
from accelerate.state import DistributedType
from sharded_run import begin, train
from small_net import Net
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

transformers.logging.set_verbosity_error()
SIZES = dict(
    vocab_size=33,
    hidden_size=16,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=32,
)


def llama():
    return LlamaForCausalLM(
        LlamaConfig(
            **SIZES, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=2
        )
    )


class Bert(BertForSequenceClassification):
    def forward(self, input_ids, labels=None):
        return super().forward(input_ids, labels=input_ids[:, 0])


def bert():
    return Bert(
        BertConfig(
            **SIZES, num_labels=33, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
    )


STAGES = [
    dict(sharding_strategy="SHARD_GRAD_OP"),
    dict(fsdp_version=2, auto_wrap_policy="TRANSFORMER_BASED_WRAP"),
    dict(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1000),
]
for make in (Net, llama, bert):
    accelerator = begin()
    assert accelerator.distributed_type == DistributedType.MULTI_CPU
    assert accelerator.state.fsdp_plugin is None and not accelerator.is_fsdp2
    model, _, expected = train(accelerator, make)
    whole = {name: value.clone() for name, value in model.state_dict().items()}
    tokens = torch.tensor([[3, 4, 5], [6, 7, 8]]) + accelerator.process_index
    if make is llama:
        expected_tokens = model.generate(tokens, max_new_tokens=4, do_sample=False)
    for fields in STAGES:
        if make is Net and "fsdp_version" in fields:
            fields = {**fields, "transformer_cls_names_to_wrap": ["Block"]}
        accelerator = begin(**fields)
        assert accelerator.distributed_type == DistributedType.FSDP
        assert accelerator.state.fsdp_plugin.fsdp_version == fields.get("fsdp_version", 1)
        assert accelerator.is_fsdp2 == ("fsdp_version" in fields)
        model, optimizer, seen = train(accelerator, make)
        for a, b in zip(seen, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        # Each process trains one half, and padding.
        held = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        assert held < 0.6 * sum(p.numel() for p in model.parameters()), held
        state = accelerator.get_state_dict(model)
        if accelerator.is_main_process:
            assert state.keys() == whole.keys()
            different = [
                name for name, value in state.items() if not torch.equal(value, whole[name])
            ]
            assert different == [], (make, fields, different)
        elif fields != STAGES[0]:
            assert state == {}
        if make is llama:
            out = model.generate(tokens, max_new_tokens=4, do_sample=False)
            assert torch.equal(out, expected_tokens)
            # One process has more to say than the other.
            num = 2 + 3 * accelerator.process_index
            out = model.generate(tokens, max_new_tokens=num, do_sample=False)
            assert out.shape == (2, 3 + num)
# Clipping adds squares up in another order; AdamW makes the most of it.
_, _, expected = train(begin(), llama, max_norm=0.1)
_, _, seen = train(begin(fsdp_version=2), llama, max_norm=0.1)
for a, b in zip(seen, expected, strict=True):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
# Blocks that are computed again, once however often the model is prepared.
model, _, _ = train(begin(), Net)
whole = {name: value.clone() for name, value in model.state_dict().items()}
accelerator = begin(
    fsdp_version=2,
    auto_wrap_policy="transformer_based_wrap",
    transformer_cls_names_to_wrap=["Block"],
    activation_checkpointing=True,
)
model, _, _ = train(accelerator, Net)
assert accelerator.prepare(model) is model
state = accelerator.get_state_dict(model)
assert all(torch.equal(value, whole[name]) for name, value in state.items())
print("equal", accelerator.process_index)
