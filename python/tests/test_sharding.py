# SPDX-License-Identifier: Apache-2.0
"""Sharded training from Python: the original's plugin, what it trains, and what is saved. Two
processes add two gradients and halve the sum, so that weights are those of data parallel training
bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
import warnings
from pathlib import Path

import pytest
import ranks
import torch
from original import originals_python
from tiers import cases

from accelerate import Accelerator
from accelerate.state import AcceleratorState

COMMON = """
    import copy, gc, io, os, sys, warnings
    os.environ.update(HF_HUB_OFFLINE="1")
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, DistributedType
    from accelerate.utils import DistributedDataParallelKwargs, FullyShardedDataParallelPlugin

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(16)
            self.inner = torch.nn.Linear(16, 48)
            self.outer = torch.nn.Linear(48, 16)

        def forward(self, x):
            return x + self.outer(torch.tanh(self.inner(self.norm(x))))

    class Net(torch.nn.Module):
        "Tied, frozen and unused parameters, and buffers that training changes."
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(33, 16)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
            self.batch_norm = torch.nn.BatchNorm1d(16)
            self.unused = torch.nn.Linear(5, 3)
            self.head = torch.nn.Linear(16, 33, bias=False)
            self.head.weight = self.words.weight
            self.blocks[1].inner.weight.requires_grad_(False)

        def forward(self, input_ids, labels=None):
            x = self.words(input_ids)
            for block in self.blocks:
                x = block(x)
            x = self.batch_norm(x.mean(1))
            return torch.nn.functional.cross_entropy(self.head(x), input_ids[:, 0])

    def begin(steps=2, **fields):
        # The group stays; of the last run nothing does.
        AcceleratorState._reset_state()
        os.environ.pop("ACCELERATE_USE_FSDP", None)
        plugin = FullyShardedDataParallelPlugin(**fields) if fields else None
        unused = [DistributedDataParallelKwargs(find_unused_parameters=True)]
        return Accelerator(gradient_accumulation_steps=steps, fsdp_plugin=plugin,
                           kwargs_handlers=unused)

    def batches(accelerator, num=6):
        generator = torch.Generator().manual_seed(5 + accelerator.process_index)
        for _ in range(num):
            ids = torch.randint(3, 33, (4, 7), generator=generator)
            yield {"input_ids": ids, "labels": ids}

    def loss_of(output):
        return output if isinstance(output, torch.Tensor) else output.loss

    def train(accelerator, make, max_norm=1e3):
        torch.manual_seed(1)
        model = make()
        groups = [{"params": [p for p in model.parameters() if p.dim() > 1]},
                  {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0}]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        model, optimizer = accelerator.prepare(model, optimizer)
        seen = []
        for batch in batches(accelerator):
            with accelerator.accumulate(model):
                loss = loss_of(model(**batch))
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    seen.append(accelerator.clip_grad_norm_(model.parameters(), max_norm))
                optimizer.step()
                optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                seen.append(loss_of(model(**batch)))
            model.train()
            seen.append(loss.detach())
        return model, optimizer, seen

    def refused(function, word, kind=Exception):
        try:
            function()
        except kind as error:
            assert word in str(error) and "\\n" not in str(error).strip(), error
        else:
            raise AssertionError(f"nothing was refused: {word}")
"""

TRAIN = COMMON + """
    import transformers
    from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM
    transformers.logging.set_verbosity_error()
    SIZES = dict(vocab_size=33, hidden_size=16, intermediate_size=48, num_hidden_layers=2,
                 num_attention_heads=2, max_position_embeddings=32)

    def llama():
        return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True, pad_token_id=0,
                                            eos_token_id=1, bos_token_id=2))

    class Bert(BertForSequenceClassification):
        def forward(self, input_ids, labels=None):
            return super().forward(input_ids, labels=input_ids[:, 0])

    def bert():
        return Bert(BertConfig(**SIZES, num_labels=33, hidden_dropout_prob=0.0,
                               attention_probs_dropout_prob=0.0))

    STAGES = [dict(sharding_strategy="SHARD_GRAD_OP"),
              dict(fsdp_version=2, auto_wrap_policy="TRANSFORMER_BASED_WRAP"),
              dict(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1000)]
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
            # Each process trains one half, and what fills it up.
            held = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
            assert held < 0.6 * sum(p.numel() for p in model.parameters()), held
            state = accelerator.get_state_dict(model)
            if accelerator.is_main_process:
                assert state.keys() == whole.keys()
                different = [name for name, value in state.items()
                             if not torch.equal(value, whole[name])]
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
    accelerator = begin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
                        transformer_cls_names_to_wrap=["Block"], activation_checkpointing=True)
    model, _, _ = train(accelerator, Net)
    assert accelerator.prepare(model) is model
    state = accelerator.get_state_dict(model)
    assert all(torch.equal(value, whole[name]) for name, value in state.items())
    print("equal", accelerator.process_index)
"""


def test_training_equals_data_parallel_training(tmp_path):
    pytest.importorskip("transformers")
    out = ranks.fork_ours(TRAIN, tmp_path)
    assert "equal 0" in out and "equal 1" in out


PYTORCH = COMMON + """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(33, 16)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
            self.head = torch.nn.Linear(16, 33)

        def forward(self, input_ids, labels=None):
            x = self.words(input_ids)
            for block in self.blocks:
                x = block(x)
            return torch.nn.functional.cross_entropy(self.head(x.mean(1)), input_ids[:, 0])

    def steps(model, optimizer, backward):
        for batch in batches(accelerator):
            backward(model(**batch))
            optimizer.step()
            optimizer.zero_grad()

    accelerator = begin(steps=1, fsdp_version=2, reshard_after_forward=True)
    torch.manual_seed(1)
    model = Plain()
    begun = copy.deepcopy(model)
    theirs = copy.deepcopy(model)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    steps(model, optimizer, accelerator.backward)
    state = accelerator.get_state_dict(model)

    mesh = init_device_mesh("cpu", (2,))
    for block in theirs.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(theirs, mesh=mesh)
    steps(theirs, torch.optim.AdamW(theirs.parameters(), lr=0.01), torch.Tensor.backward)
    for name, part in theirs.named_parameters():
        value = part.full_tensor()
        if accelerator.is_main_process:
            # AdamW makes much of the last bit of a gradient that is nearly zero.
            assert (state[name] - value).abs().max() < 1e-4, name
            assert (begun.get_parameter(name) - value).abs().max() > 0.01, name
    print("near", accelerator.process_index)
"""


def test_training_is_near_pytorchs_fsdp2(tmp_path):
    out = ranks.check(ranks.run(ranks.LAUNCH, tmp_path, PYTORCH))
    assert "near 0" in out and "near 1" in out


SAVE = COMMON + """
    accelerator = begin(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1000)
    model, optimizer, _ = train(accelerator, Net)
    rank = accelerator.process_index
    # By hand nothing empty ever comes out of it.
    assert "Linear" in repr(model)
    state = model.state_dict()
    assert state["words.weight"].shape == (33, 16)
    refused(lambda: torch.save(state, io.BytesIO()), "save_model")
    refused(lambda: copy.deepcopy(model), "save_model")
    refused(lambda: repr(model.words.weight), "save_model")
    refused(lambda: repr(model.blocks[2].outer.weight), "unit 'blocks.2'")
    refused(lambda: model.words.weight.detach().numpy(), "save_model")
    refused(lambda: model.words.weight.data_ptr(), "save_model")
    refused(lambda: model.load_state_dict(state), "load_state")
    refused(lambda: accelerator.unwrap_model(model)(torch.zeros(2, 3, dtype=torch.long)),
            "outside of a forward")
    accelerator.backward(model(**next(batches(accelerator))))
    refused(lambda: model.blocks[0].inner.weight.grad.sum(), "clip_grad_norm_")
    refused(lambda: accelerator.save_state("other", layout="accelerate"), "layout")
    refused(lambda: accelerator.save_state("other", safe_serialization=False), "layout")
    refused(lambda: torch.compile(model, backend="eager")(torch.zeros(2, 3, dtype=torch.long)),
            "torch.compile")
    for kind in (torch.optim.LBFGS, torch.optim.Adafactor, torch.optim.Muon):
        chosen = [p for p in Net().parameters() if p.dim() == 2 and p.requires_grad]
        other = torch.nn.ParameterList(chosen)
        accelerator = begin(fsdp_version=2)
        refused(lambda: accelerator.prepare(other, kind(list(other))), kind.__name__)
    accelerator = begin(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1000)
    model, optimizer, _ = train(accelerator, Net)
    accelerator.save_model(model, "whole")
    state = accelerator.get_state_dict(accelerator.unwrap_model(model))
    if rank == 0:
        assert state["head.weight"] is state["words.weight"]
        torch.save(state, "whole.pt")
    accelerator.save_state("run")
    # What is trained after it is forgotten.
    def one_step():
        model.train()
        for batch in batches(accelerator, 2):
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch))
                optimizer.step()
                optimizer.zero_grad()
        return accelerator.get_state_dict(model)
    after = one_step()
    accelerator.load_state("run")
    again = one_step()
    assert all(torch.equal(value, again[name]) for name, value in after.items())
    # Other units, and no sharding at all.
    for fields in (dict(fsdp_version=2), dict(sharding_strategy="SHARD_GRAD_OP"), {}):
        other = begin(**fields)
        torch.manual_seed(9)
        plain = Net()
        plain, opt = other.prepare(plain, torch.optim.AdamW(
            [{"params": [p for p in plain.parameters() if p.dim() > 1]},
             {"params": [p for p in plain.parameters() if p.dim() <= 1], "weight_decay": 0}]))
        other.load_state("run")
        loaded = other.get_state_dict(plain)
        if rank == 0:
            state = torch.load("whole.pt")
            assert all(torch.equal(value, loaded[name]) for name, value in state.items())
    # Weights that one process alone has read, as transformers' loading does.
    accelerator = begin(cpu_ram_efficient_loading=True, auto_wrap_policy="SIZE_BASED_WRAP",
                        min_num_params=1000)
    torch.manual_seed(4)
    with torch.device("cpu" if rank == 0 else "meta"):
        light = Net()
        if rank != 0:
            light.head.weight = light.words.weight
    expected = {name: value.clone() for name, value in light.state_dict().items()}
    light, opt = accelerator.prepare(light, torch.optim.SGD(light.parameters()))
    found = accelerator.get_state_dict(light)
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
    light(**next(iter(batches(accelerator))))
    # One process alone gets an answer, and nobody waits.
    wait = accelerator.wait_for_everyone
    refused(lambda: accelerator.save_state("other") if rank == 0 else wait(), "save_state")
    refused(lambda: accelerator.save_model(light, "other") if rank == 0 else wait(), "to save it")
    print("saved", rank)
"""


def net_of(script: str):
    """The classes of a script, in this process."""
    names: dict = {}
    exec(textwrap.dedent(script.partition("def begin")[0].rstrip()), names)
    return names["Net"]


def test_what_is_saved_is_whole(tmp_path):
    out = ranks.fork_ours(SAVE, tmp_path)
    assert "saved 0" in out and "saved 1" in out
    whole = torch.load(tmp_path / "whole.pt")
    # On one process, without a plugin.
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True)
    model = net_of(COMMON)()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1]},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0},
    ]
    model, _ = accelerator.prepare(model, torch.optim.AdamW(groups))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accelerator.load_state(tmp_path / "run")
    assert all(torch.equal(value, whole[name]) for name, value in model.state_dict().items())
    from safetensors.torch import load_file

    written = load_file(tmp_path / "whole" / "model.safetensors")
    assert all(torch.equal(value, whole[name]) for name, value in written.items())
    assert not (tmp_path / "other").exists()


TRAINER = """
    import os, sys
    os.environ.update(HF_HUB_OFFLINE="1")
    import torch, transformers
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
    from accelerate.state import AcceleratorState
    transformers.logging.set_verbosity_error()

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            generator = torch.Generator().manual_seed(index)
            ids = torch.randint(3, 33, (7,), generator=generator)
            return {"input_ids": ids, "labels": ids}

    def run(folder, resume=None, **fields):
        AcceleratorState._reset_state(True)
        os.environ.pop("ACCELERATE_USE_FSDP", None)
        torch.manual_seed(1)
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=33, hidden_size=16, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=2, max_position_embeddings=32))
        args = TrainingArguments(
            folder, per_device_train_batch_size=2, max_steps=6, logging_steps=1, use_cpu=True,
            report_to=[], learning_rate=0.01, max_grad_norm=1e3, save_strategy="steps",
            save_steps=3, eval_strategy="steps", eval_steps=3, disable_tqdm=True, **fields)
        trainer = Trainer(model, args, train_dataset=Rows(), eval_dataset=Rows())
        trainer.train(resume_from_checkpoint=resume)
        trainer.save_model(folder + "/last")
        trainer.accelerator.wait_for_everyone()
        lines = trainer.state.log_history
        losses = [line.get("loss", line.get("eval_loss")) for line in lines]
        return losses[:-1], load_file(folder + "/last/model.safetensors")

    expected, weights = run("whole")
    for version in sys.argv[1:]:
        fields = dict(fsdp="full_shard auto_wrap", fsdp_config={"version": int(version)})
        for resume in (None, f"sharded{version}/checkpoint-3"):
            losses, found = run(f"sharded{version}", resume, **fields)
            assert losses == expected, (version, resume, losses, expected)
            assert weights.keys() == found.keys()
            assert all(torch.equal(value, found[name]) for name, value in weights.items())
    print("trained", os.environ["RANK"])
"""


def test_trainer_shards_and_goes_on(tmp_path):
    """The last line of its history has the mean of the losses since the start."""
    pytest.importorskip("transformers")
    versions = cases(["1", "2"], small=["2"])
    out = ranks.fork_ours(TRAINER, tmp_path, *versions)
    assert "trained 0" in out and "trained 1" in out


# --- the plugin -------------------------------------------------------------------------------

# Variables and arguments; both packages answer with fields, or with the kind of their exception.
FIELDS = """
    import json, os, warnings
    warnings.simplefilter("ignore")
    import torch
    from accelerate.utils import FullyShardedDataParallelPlugin
    bf16, fp32 = torch.bfloat16, torch.float32
    CASES = [
        ({}, {}),
        ({"VERSION": "2"}, {}),
        ({"SHARDING_STRATEGY": "SHARD_GRAD_OP", "AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
          "TRANSFORMER_CLS_TO_WRAP": "A,B", "BACKWARD_PREFETCH": "BACKWARD_POST",
          "USE_ORIG_PARAMS": "true", "OFFLOAD_PARAMS": "true", "FORWARD_PREFETCH": "true",
          "ACTIVATION_CHECKPOINTING": "true"}, {}),
        ({"SHARDING_STRATEGY": "5", "STATE_DICT_TYPE": "SHARDED_STATE_DICT"}, {}),
        ({"VERSION": "2", "RESHARD_AFTER_FORWARD": "false", "CPU_RAM_EFFICIENT_LOADING": "1"}, {}),
        ({}, dict(fsdp_version=2, reshard_after_forward=False, state_dict_type="FULL_STATE_DICT",
                  mixed_precision_policy="bf16", activation_checkpointing=True,
                  activation_checkpointing_offload=True)),
        ({}, dict(auto_wrap_policy="size_based_wrap", min_num_params=100, mixed_precision_policy=
                  dict(param_dtype=bf16, reduce_dtype=fp32, buffer_dtype=bf16))),
        ({}, dict(fsdp_version=2, reshard_after_forward="false", cpu_offload=True)),
        ({}, dict(sharding_strategy="HYBRID_SHARD_ZERO2", backward_prefetch="NO_PREFETCH")),
        ({}, dict(fsdp_version=2, reshard_after_forward="FULL_SHARD")),
        ({}, dict(fsdp_version=1, reshard_after_forward=True)),
        ({}, dict(fsdp_version=2, state_dict_type="LOCAL_STATE_DICT")),
        ({}, dict(auto_wrap_policy="every")),
        ({}, dict(auto_wrap_policy="size_based_wrap", min_num_params="9")),
        ({}, dict(activation_checkpointing_offload=True)),
        ({}, dict(fsdp_version=2, forward_prefetch=True)),
        ({}, dict(mixed_precision_policy=dict(param_dtype=bf16))),
        ({}, dict(mixed_precision_policy="int8")),
        ({}, dict(cpu_offload="x")),
    ]
    answers = []
    for variables, fields in CASES:
        for name in [name for name in os.environ if name.startswith("FSDP_")]:
            del os.environ[name]
        os.environ.update({"FSDP_" + name: value for name, value in variables.items()})
        try:
            plugin = FullyShardedDataParallelPlugin(**fields)
        except Exception as error:
            answers.append(type(error).__name__)
        else:
            answers.append({name: getattr(value, "__name__", str(value))
                            for name, value in vars(plugin).items()})
    print(json.dumps(answers))
"""


def test_fields_and_variables_are_read_as_the_original_does(tmp_path):
    path = tmp_path / "fields.py"
    path.write_text(textwrap.dedent(FIELDS))

    def ask(python: str, **variables: str) -> list:
        answer = subprocess.run(
            [python, str(path)],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
            timeout=ranks.TIMEOUT_SECONDS,
        )
        return json.loads(answer.stdout.splitlines()[-1])

    theirs = ask(originals_python(), PYTHONPATH="")
    assert ask(os.environ["ACCELERATE_TEST_PYTHON"]) == theirs
    assert len(theirs) == 19 and theirs.count("ValueError") == 10


REFUSED = COMMON + """
    launched = {name: value for name, value in os.environ.items() if "FSDP" in name}
    for name in launched:
        del os.environ[name]
    Plugin = FullyShardedDataParallelPlugin
    refused(lambda: begin(ignored_modules=[torch.nn.Linear(1, 1)]), "ignored_modules")
    refused(lambda: begin(param_init_fn=lambda module: None), "param_init_fn")
    refused(lambda: begin(state_dict_type="LOCAL_STATE_DICT"), "LOCAL_STATE_DICT")
    refused(lambda: begin(fsdp_version=2, activation_checkpointing=True,
                          activation_checkpointing_offload=True), "offload")
    refused(lambda: begin(mixed_precision_policy="bf16"), "mixed_precision_policy")
    refused(lambda: Accelerator(fsdp_plugin="FULL_SHARD"), "FullyShardedDataParallelPlugin")
    accelerator = begin(auto_wrap_policy="transformer_based_wrap",
                        transformer_cls_names_to_wrap=["Nobody"])
    refused(lambda: accelerator.prepare(Net()), "Nobody")
    accelerator = begin(activation_checkpointing=True)
    refused(lambda: accelerator.prepare(Net()), "auto_wrap_policy")
    accelerator = begin(fsdp_version=2)
    with torch.device("meta"):
        nothing = Net()
    if accelerator.is_main_process:
        refused(lambda: accelerator.prepare(nothing), "on the meta device on process 0")
    accelerator = begin()
    refused(lambda: Accelerator(fsdp_plugin=Plugin()), "_reset_state")
    # Nothing is sharded: data parallel training under another name.
    accelerator = begin(sharding_strategy="NO_SHARD")
    assert accelerator.distributed_type == DistributedType.FSDP
    model, _, _ = train(accelerator, Net)
    assert model.state_dict()["words.weight"].sum().isfinite()
    # As the launcher says, by variables; in bf16 the policy answers as the original's.
    AcceleratorState._reset_state()
    for name in [name for name in os.environ if "FSDP" in name]:
        del os.environ[name]
    os.environ.update(launched)
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    assert accelerator.is_fsdp2
    plugin = accelerator.state.fsdp_plugin
    assert plugin.mixed_precision_policy.param_dtype == torch.bfloat16
    assert plugin.transformer_cls_names_to_wrap == ["Block"] and plugin.reshard_after_forward
    assert plugin.activation_checkpointing is True
    model, _, _ = train(accelerator, Net)
    state = accelerator.get_state_dict(model)
    assert all(value.dtype == torch.float32 for name, value in state.items() if "weight" in name)
    # A second one of the process shards as the first.
    assert Accelerator().is_fsdp2
    print("refused", accelerator.process_index)
"""


NEW_STATE = """
import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin


def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def train(model, optimizer, backward):
    for step in range(4):
        torch.manual_seed(step)
        backward(model(torch.randn(4, 8)).square().mean())
        optimizer.step()
        optimizer.zero_grad()


accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
# One that stepped already is refused, and is nobody's afterwards.
model = net()
stepped = torch.optim.AdamW(model.parameters())
train(model, stepped, torch.Tensor.backward)
try:
    accelerator.prepare(model, stepped)
except RuntimeError as error:
    assert "has state for" in str(error), error
else:
    raise AssertionError("was taken")
assert accelerator._optimizers == []
# Adagrad makes its state before the first step: taken, and trains as without sharding.
expected = net()
train(expected, torch.optim.Adagrad(expected.parameters(), 0.1, initial_accumulator_value=0.2),
      torch.Tensor.backward)
model = net()
optimizer = torch.optim.Adagrad(model.parameters(), 0.1, initial_accumulator_value=0.2)
model, optimizer = accelerator.prepare(model, optimizer)
train(model, optimizer, accelerator.backward)
for name, value in accelerator.get_state_dict(model).items():
    # Both ranks have the same rows: a mean of two equal gradients.
    assert torch.equal(value, expected.state_dict()[name]), name
print("took", accelerator.process_index)
"""


def test_state_of_before_the_first_step_is_cut(tmp_path):
    out = ranks.check(
        ranks.run(["accelerate", "launch", "--cpu", "--num_processes", "2"], tmp_path, NEW_STATE)
    )
    assert "took 0" in out and "took 1" in out


def test_what_cannot_be_right_is_refused_in_one_line(tmp_path):
    # What `accelerate config` of the original writes, and a flag over it.
    (tmp_path / "config.yaml").write_text(
        textwrap.dedent("""
            compute_environment: LOCAL_MACHINE
            distributed_type: FSDP
            fsdp_config:
              fsdp_activation_checkpointing: false
              fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
              fsdp_reshard_after_forward: true
              fsdp_state_dict_type: SHARDED_STATE_DICT
              fsdp_transformer_layer_cls_to_wrap: Block
              fsdp_version: 2
            num_processes: 2
            use_cpu: true
        """)
    )
    launch = ["accelerate", "launch", "--config_file", str(tmp_path / "config.yaml")]
    launch += ["--fsdp_activation_checkpointing", "true"]
    out = ranks.check(ranks.run(launch, tmp_path, REFUSED))
    assert "refused 0" in out and "refused 1" in out


def test_a_hybrid_strategy_has_a_copy_on_each_machine(tmp_path):
    """Four processes that are told that they are two on each of two machines."""
    script = """
    import os
    rank = int(os.environ["RANK"])
    os.environ.update(LOCAL_WORLD_SIZE="2", LOCAL_RANK=str(rank % 2))
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import FullyShardedDataParallelPlugin

    def train(strategy):
        AcceleratorState._reset_state(True)
        plugin = strategy and FullyShardedDataParallelPlugin(sharding_strategy=strategy)
        accelerator = Accelerator(fsdp_plugin=plugin)
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 16))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        net, optimizer = accelerator.prepare(net, optimizer)
        torch.manual_seed(rank)
        for _ in range(4):
            x = torch.randn(8, 16)
            accelerator.backward((net(x) - x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        own = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        return own, accelerator.get_state_dict(net)

    whole, plain = train(None)
    for strategy, parts in (("HYBRID_SHARD", 2), ("HYBRID_SHARD_ZERO2", 2), ("FULL_SHARD", 4)):
        own, sharded = train(strategy)
        # Parts begin at multiples of 64 numbers.
        assert abs(own - whole / parts) <= 64 * 4, (strategy, own, whole)
        if rank == 0:
            # Sums over four ranks are added up in another order.
            worst = max((plain[k] - sharded[k]).abs().max().item() for k in plain)
            assert worst <= 1e-6, (strategy, worst)
    print("alike", rank)
    """
    out = ranks.fork_ours(script, tmp_path, num_ranks=4)
    assert sorted(line for line in out.splitlines() if line.startswith("alike")) == [
        f"alike {rank}" for rank in range(4)
    ]
