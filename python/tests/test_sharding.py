# SPDX-License-Identifier: Apache-2.0
"""Sharded training from Python: the original's plugin, training, and saving. Two processes add two
gradients and halve the sum, so weights are bit-identical to those of data parallel training."""

from __future__ import annotations

import json
import textwrap
import warnings
from pathlib import Path

import pytest
import ranks
import torch
from both_packages import ours_with_libraries
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
        "Tied, frozen, unused parameters, one of no dimension, buffers that training changes."
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(33, 16)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
            self.batch_norm = torch.nn.BatchNorm1d(16)
            self.unused = torch.nn.Linear(5, 3)
            self.head = torch.nn.Linear(16, 33, bias=False)
            self.head.weight = self.words.weight
            self.blocks[1].inner.weight.requires_grad_(False)
            self.scale = torch.nn.Parameter(torch.tensor(1.5))

        def forward(self, input_ids, labels=None):
            x = self.words(input_ids)
            for block in self.blocks:
                x = block(x)
            x = self.batch_norm(x.mean(1)) * self.scale
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
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

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

    def steps(model, optimizer, backward, before_step=lambda: None):
        for batch in batches(accelerator):
            backward(model(**batch))
            before_step()
            optimizer.step()
            optimizer.zero_grad()

    def compare(make_optimizer, bound, policy=None, ignored=None):
        "The most that weights differ by from those of torch, which must have moved."
        global accelerator
        AcceleratorState._reset_state()
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, reshard_after_forward=True, ignored_modules=ignored,
            mixed_precision_policy=policy, auto_wrap_policy="TRANSFORMER_BASED_WRAP",
            transformer_cls_names_to_wrap=["Block"])
        is_bf16 = policy is not None and policy.param_dtype == torch.bfloat16
        accelerator = Accelerator(fsdp_plugin=plugin, mixed_precision="bf16" if is_bf16 else "no")
        torch.manual_seed(1)
        model = Plain()
        begun = copy.deepcopy(model)
        theirs = copy.deepcopy(model)
        model, optimizer = accelerator.prepare(model, make_optimizer(model.parameters()))
        steps(model, optimizer, accelerator.backward)
        state = accelerator.get_state_dict(model)

        kept = list(theirs.head.parameters()) if ignored else []
        settings = dict(mesh=init_device_mesh("cpu", (2,)), ignored_params=set(kept))
        if policy is not None:
            settings["mp_policy"] = policy
        for block in theirs.blocks:
            fully_shard(block, **settings)
        fully_shard(theirs, **settings)

        def average():
            # torch leaves those of ignored parameters as they are on each process.
            for parameter in kept:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= 2
        def call(**batch):
            with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
                return theirs(**batch)
        steps(call, make_optimizer(theirs.parameters()), torch.Tensor.backward, average)
        worst = 0
        for name, part in theirs.named_parameters():
            value = part.full_tensor() if hasattr(part, "full_tensor") else part
            if accelerator.is_main_process:
                assert state[name].dtype == torch.float32
                assert (begun.get_parameter(name) - value).abs().max() > 20 * bound, name
                worst = max(worst, (state[name] - value).abs().max().item())
        assert worst <= bound, (policy, ignored, worst)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        is_held = [id(p) in held for p in model.head.parameters()]
        assert all(is_held) if ignored else not any(is_held)

    def adamw(parameters):
        return torch.optim.AdamW(parameters, lr=0.01)
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.5)
    Policy = MixedPrecisionPolicy
    bf16, fp32 = torch.bfloat16, torch.float32
    # AdamW makes much of the last bit of a gradient that is nearly zero.
    compare(adamw, 1e-4)
    compare(adamw, 1e-4, ignored="head")
    # Two numbers have one sum, however they are added: the same roundings at the same places.
    compare(sgd, 1e-6, Policy(param_dtype=bf16, reduce_dtype=fp32))
    compare(sgd, 1e-6, Policy(param_dtype=bf16))
    compare(sgd, 1e-6, Policy(reduce_dtype=bf16))
    print("near", accelerator.process_index)
"""


def test_training_is_near_pytorchs_fsdp2(tmp_path):
    out = ranks.fork_ours(PYTORCH, tmp_path)
    assert "near 0" in out and "near 1" in out


SAVE = COMMON + """
    import pickle
    import torch.optim.swa_utils
    from torch.distributed.fsdp import FullyShardedDataParallel
    accelerator = begin(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1000)
    model, optimizer, _ = train(accelerator, Net)
    rank = accelerator.process_index
    # By hand nothing empty ever comes out of it.
    assert "Linear" in repr(model)
    state = model.state_dict()
    assert state["words.weight"].shape == (33, 16)
    refused(lambda: torch.save(state, io.BytesIO()), "save_model")
    refused(lambda: copy.deepcopy(model), "save_model")
    for weight, word in ((model.words.weight, "save_model"),
                         (model.blocks[2].outer.weight, "unit 'blocks.2'")):
        # Newer releases of torch print a tensor without storage by its size.
        try:
            shown = repr(weight)
        except RuntimeError as error:
            assert word in str(error), error
        else:
            assert "..., size=" in shown, shown
    refused(lambda: model.words.weight.detach().numpy(), "save_model")
    refused(lambda: model.words.weight.data_ptr(), "save_model")
    refused(lambda: model.load_state_dict(state), "load_state")
    refused(lambda: torch.save(model, io.BytesIO()), "save_model")
    refused(lambda: pickle.dumps(model), "save_model")
    refused(lambda: copy.deepcopy(state), "save_model")
    refused(lambda: model.words.weight.tolist(), "save_model")
    refused(lambda: bytes(model.words.weight.untyped_storage()), "save_model")
    refused(lambda: torch.utils.dlpack.to_dlpack(model.words.weight.detach()), "save_model")
    refused(lambda: torch.nn.utils.parameters_to_vector(model.parameters()), "save_model")
    refused(lambda: torch.optim.swa_utils.AveragedModel(model), "save_model")
    refused(lambda: model.half(), "save_model")
    with FullyShardedDataParallel.summon_full_params(model):
        refused(lambda: model.words.weight.sum(), "save_model")
    refused(lambda: accelerator.unwrap_model(model)(torch.zeros(2, 3, dtype=torch.long)),
            "outside the prepared model's forward")
    accelerator.backward(model(**next(batches(accelerator))))
    refused(lambda: model.blocks[0].inner.weight.grad.sum(), "clip_grad_norm_")
    refused(lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1), "clip_grad_norm_")
    refused(lambda: optimizer.optimizer.step(), "prepare() returned")
    optimizer.zero_grad()
    # The optimizer's own state is this process's part.
    mine = io.BytesIO()
    torch.save(optimizer.state_dict(), mine)
    mine.seek(0)
    optimizer.load_state_dict(torch.load(mine))
    plain = Net()
    other = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad])
    plain(**next(batches(accelerator))).backward()
    other.step()
    foreign = {**optimizer.state_dict(), "state": other.state_dict()["state"]}
    refused(lambda: optimizer.load_state_dict(foreign), "accelerator.load_state")
    refused(lambda: accelerator.save_state("other", layout="accelerate"), "layout")
    refused(lambda: accelerator.save_state("other", safe_serialization=False), "layout")
    # Memory that no step would reach.
    def read(model):
        return model(**next(batches(accelerator)))
    model.batch_norm.weight.data = torch.ones(16)
    refused(lambda: read(model), "'batch_norm.weight' was moved to new memory")
    accelerator = begin(sharding_strategy="SHARD_GRAD_OP")
    model, optimizer, _ = train(accelerator, Net)
    refused(lambda: optimizer.optimizer.step(), "prepare() returned")
    model.head.weight.data.mul_(0.5)
    read(model)
    model.half()
    refused(lambda: read(model), "was moved to new memory")
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
    wait = accelerator.wait_for_everyone
    # As the original saves whole models.
    if rank == 0:
        os.mkdir("originals")
        open("originals/random_states_0.pkl", "wb").close()
    wait()
    refused(lambda: accelerator.load_state("originals"), "cannot be loaded into sharded models")
    # One process alone gets an answer, and nobody waits.
    refused(lambda: accelerator.save_state("other") if rank == 0 else wait(), "save_state")
    refused(lambda: accelerator.save_model(light, "other") if rank == 0 else wait(), "save_model")
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


COMPILED = COMMON + """
    def compile_blocks(model):
        for block in model.blocks:
            block.compile(backend="eager")
        return model

    def replace_blocks(model):
        for number, block in enumerate(model.blocks):
            model.blocks[number] = torch.compile(block, backend="eager")
        return model

    def compile_all(model):
        return torch.compile(model, backend="eager")

    def compile_in_place(model):
        model.compile(backend="eager")
        return model

    # Before anything is cut, so that the model is as it was.
    for way in (compile_blocks, replace_blocks, compile_all, compile_in_place):
        accelerator = begin(fsdp_version=2)
        model = way(Net())
        refused(lambda: accelerator.prepare(model), "torch.compile")
        assert all(p.sum().isfinite() for p in model.parameters())
    model, _, _ = train(begin(fsdp_version=2), Net)
    refused(lambda: compile_in_place(model), "torch.compile")
    refused(lambda: compile_all(model)(torch.zeros(2, 3, dtype=torch.long)), "torch.compile")
    print("compiled", os.environ["RANK"])
"""


def test_compiled_models_are_refused_where_parameters_are_cut(tmp_path):
    out = ranks.fork_ours(COMPILED, tmp_path)
    assert "compiled 0" in out and "compiled 1" in out


# A single process has whole parameters.
RESUME = COMMON + """
    import torch.distributed as dist
    stage, order, froms = sys.argv[1], sys.argv[2], sys.argv[3:]
    FIELDS = {"3": dict(fsdp_version=2), "2": dict(sharding_strategy="SHARD_GRAD_OP")}[stage]
    here = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))

    def make(fields, values=None):
        accelerator = begin(steps=1, **fields)
        torch.manual_seed(rank)
        model = Net()
        if values:
            model.load_state_dict(values)
        optimizer = torch.optim.AdamW(
            [{"params": [p for p in model.parameters() if p.dim() > 1], "lr": 0.02},
             {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0}],
            lr=0.01, eps=1e-3)  # A gradient of nearly zero moves nothing.
        names = {id(p): name for name, p in model.named_parameters()}
        order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
        return accelerator, order, *accelerator.prepare(model, optimizer)

    def steps(accelerator, model, optimizer, first, last):
        for step in range(first, last):
            generator = torch.Generator().manual_seed(10 * step + rank)
            ids = torch.randint(3, 33, (4, 7), generator=generator)
            accelerator.backward(model(ids))
            optimizer.step()
            optimizer.zero_grad()

    def whole(accelerator, order, model, optimizer):
        "Weights and moments on process 0: parts lie one after the other, in the order of ranks."
        weights = {k: v.clone() for k, v in accelerator.get_state_dict(model).items()}
        moments = {}
        params = [p for group in optimizer.param_groups for p in group["params"]]
        for name, part in zip(order, params, strict=True):
            entry = {k: v.flatten().clone() for k, v in optimizer.state.get(part, {}).items()}
            parts = [entry]
            if here > 1 and FIELDS:
                parts = [None] * here
                dist.all_gather_object(parts, entry)
            moments[name] = {
                # Steps are counted for each parameter, where a process has a part of it.
                key: torch.cat([part[key] for part in parts if key in part]) if key != "step" else
                max(part[key] for part in parts if key in part)
                for key in {key for part in parts for key in part}}
        return {"weights": weights, "moments": moments}

    def check(found, expected, what):
        if rank != 0:
            return
        for kind, values in expected.items():
            for name, value in values.items():
                for key, each in (value.items() if isinstance(value, dict) else [("", value)]):
                    got = found[kind][name][key] if key else found[kind][name]
                    assert torch.equal(got, each), (what, here, kind, name, key, got, each)

    if order == "save":
        run = make(FIELDS)
        accelerator, order, model, optimizer = run
        steps(accelerator, model, optimizer, 0, 3)
        saved = whole(*run)
        accelerator.save_state(f"run_{here}")
        steps(accelerator, model, optimizer, 3, 5)
        after = whole(*run)
        if rank == 0:
            torch.save([saved, after], f"whole_{here}.pt")
    for num in froms:
        run = make(FIELDS)
        accelerator, order, model, optimizer = run
        accelerator.load_state(f"run_{num}")
        saved, after = torch.load(f"whole_{num}.pt")
        check(whole(*run), saved, f"loaded from {num}")
        steps(accelerator, model, optimizer, 3, 5)
        went_on = whole(*run)
        if int(num) == here:
            check(went_on, after, "as if it had not ended")
            continue
        # By hand into a model that is not sharded.
        FIELDS, kept = {}, FIELDS
        run = make({}, saved["weights"])
        accelerator, order, model, optimizer = run
        for name, parameter in model.named_parameters():
            moments = saved["moments"].get(name)
            if moments:
                optimizer.state[parameter] = {
                    key: value.clone() if key == "step" else value.clone().view_as(parameter)
                    for key, value in moments.items()}
                optimizer.state[parameter]["step"] = moments["step"].view(()).clone()
        steps(accelerator, model, optimizer, 3, 5)
        expected = whole(*run)
        FIELDS = kept
        if here <= 2:
            check(went_on, expected, f"by hand from {num}")
        elif rank == 0:
            # Sums over more than two ranks are added up in another order.
            for name, value in expected["weights"].items():
                off = (went_on["weights"][name] - value).abs().max().item()
                assert off <= 1e-5, (num, here, name, off)
    if rank == 0:
        print("done", here)
"""


@pytest.mark.parametrize("stage", cases(["3", "2"], small=["3"]))
def test_a_run_goes_on_at_another_number_of_processes(tmp_path, stage):
    every = [(saved, loaded) for saved in range(1, 5) for loaded in range(1, 5)]
    pairs = cases(every, small=[(2, 1), (1, 2), (3, 2), (2, 3), (2, 2)])
    for num in sorted({saved for saved, _ in pairs}):
        ranks.fork_ours(RESUME, tmp_path, stage, "save", num_ranks=num)
    for num in sorted({loaded for _, loaded in pairs}):
        froms = [str(saved) for saved, loaded in pairs if loaded == num]
        out = ranks.fork_ours(RESUME, tmp_path, stage, "load", *froms, num_ranks=num)
        assert f"done {num}" in out


# Those of torch's that work element by element.
KINDS = """
    of_whole = {"Adafactor", "LBFGS", "Muon", "Optimizer", "SparseAdam"}
    kinds = [kind for name, kind in vars(torch.optim).items()
             if isinstance(kind, type) and name not in of_whole]
    assert len(kinds) >= 11, kinds
"""

UPDATES = COMMON + KINDS + """
    def weights(kind, **fields):
        accelerator = begin(steps=1, **fields)
        torch.manual_seed(1)
        model = Net()
        trained = [p for p in model.parameters() if p.requires_grad]
        model, optimizer = accelerator.prepare(model, kind(trained, lr=0.01))
        for batch in batches(accelerator, 3):
            accelerator.backward(model(**batch))
            optimizer.step()
            optimizer.zero_grad()
        return accelerator.get_state_dict(model)

    for kind in kinds:
        expected = {name: value.clone() for name, value in weights(kind).items()}
        for fields in (dict(sharding_strategy="SHARD_GRAD_OP"),
                       dict(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1000)):
            for name, value in weights(kind, **fields).items():
                torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6,
                                           msg=f"{kind.__name__} {fields} {name}")
    print("updated", int(os.environ["RANK"]))
"""


def test_gradients_stay_when_a_backward_raises(tmp_path):
    """As in torch on one process: gradients of earlier micro-batches, and those that had
    arrived."""
    script = """
    import os
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import (
        DeepSpeedPlugin, DistributedDataParallelKwargs, FullyShardedDataParallelPlugin)

    class Fails(torch.autograd.Function):
        is_on = False

        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            if Fails.is_on:
                raise KeyError("planned")
            return gradient

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            for index, layer in enumerate(self.layers):
                x = torch.tanh(layer(x))
                x = Fails.apply(x) if index == 1 else x
            return x.square().sum()

    def batch(rank, step):
        return torch.randn(3, 8, generator=torch.Generator().manual_seed(7 * step + rank))

    def train(net, optimizer, backward, failing):
        for step in range(6):
            Fails.is_on = step == failing
            try:
                backward(net, optimizer, step)
            except KeyError as error:
                assert "planned" in str(error)
                assert Fails.is_on

    def plain(net, optimizer, step):
        net = net.double()
        for rank in range(2):
            try:
                (net(batch(rank, step).double()) / 6).backward()
            except KeyError:
                if rank == 1:
                    raise
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()

    def stage(number):
        return dict(deepspeed_plugin=DeepSpeedPlugin(
            zero_stage=number, gradient_accumulation_steps=3, gradient_clipping=1e9))

    def strategy(name):
        return dict(fsdp_plugin=FullyShardedDataParallelPlugin(sharding_strategy=name))

    views = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    kinds = [lambda: {}, lambda: dict(kwargs_handlers=[views]), lambda: stage(1),
             lambda: stage(2), lambda: strategy("SHARD_GRAD_OP"), lambda: strategy("FULL_SHARD")]
    for failing in (0, 1, 2):
        whole = Net()
        train(whole, torch.optim.SGD(whole.parameters(), lr=0.1), plain, failing)
        for kind in kinds:
            AcceleratorState._reset_state()
            os.environ.update(ACCELERATE_USE_FSDP="false", ACCELERATE_USE_DEEPSPEED="false")
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3, **kind())
            net = Net()
            net, sgd = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))

            def ours(net, sgd, step):
                with accelerator.accumulate(net):
                    accelerator.backward(net(batch(accelerator.process_index, step)))
                    sgd.step()
                    sgd.zero_grad()

            train(net, sgd, ours, failing)
            state = accelerator.get_state_dict(net)
            for name, value in whole.state_dict().items() if state else ():
                torch.testing.assert_close(state[name].double(), value, rtol=1e-5, atol=1e-6)
    print("trained", accelerator.process_index)
    """
    out = ranks.fork_ours(script, tmp_path)
    assert "trained 0" in out and "trained 1" in out


def test_optimizers_that_look_at_single_numbers_train_as_without_sharding(tmp_path):
    out = ranks.fork_ours(UPDATES, tmp_path)
    assert "updated 0" in out and "updated 1" in out


# For a parameter without dimensions, state is a single number, whether it is sharded or counts
# steps.
UPDATES_AGAIN = COMMON + KINDS + """
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix = torch.nn.Parameter(torch.linspace(-1, 1, 64).reshape(8, 8))
            self.scale = torch.nn.Parameter(torch.tensor(1.5))
        def forward(self, x):
            return (x @ self.matrix * self.scale).square().mean()

    def train(accelerator, model, optimizer):
        for seed in range(2):
            torch.manual_seed(seed)
            accelerator.backward(model(torch.randn(4, 8)))
            optimizer.step()
            optimizer.zero_grad()
        return {name: value.clone() for name, value in accelerator.get_state_dict(model).items()}

    for kind in kinds:
        accelerator = begin(steps=1, sharding_strategy="FULL_SHARD",
                            auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1)
        model = Scaled()
        model, optimizer = accelerator.prepare(model, kind(model.parameters(), lr=0.01))
        train(accelerator, model, optimizer)
        accelerator.save_state(kind.__name__)
        expected = train(accelerator, model, optimizer)
        accelerator.load_state(kind.__name__)
        for name, value in train(accelerator, model, optimizer).items():
            assert torch.equal(value, expected[name]), (kind, name)
    print("resumed", int(os.environ["RANK"]))
"""


def test_state_of_every_such_optimizer_is_loaded(tmp_path):
    out = ranks.fork_ours(UPDATES_AGAIN, tmp_path)
    assert "resumed 0" in out and "resumed 1" in out


# Before any forward, with every way to read them.
LOADED = COMMON + """
    from safetensors.torch import load_file
    from accelerate.utils import DeepSpeedPlugin
    FSDP = dict(auto_wrap_policy="TRANSFORMER_BASED_WRAP", transformer_cls_names_to_wrap=["Block"])
    ZERO = "ACCELERATE_USE_DEEPSPEED"

    def make(stage, seed):
        os.environ.pop(ZERO, None)
        if stage == 1:
            AcceleratorState._reset_state()
            os.environ.pop("ACCELERATE_USE_FSDP", None)
            accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=1))
        else:
            name = "FULL_SHARD" if stage == 3 else "SHARD_GRAD_OP"
            accelerator = begin(steps=1, sharding_strategy=name, **FSDP)
        torch.manual_seed(seed)
        model = Net()
        values = {name: value.clone() for name, value in model.state_dict().items()}
        return accelerator, values, *accelerator.prepare(
            model, torch.optim.AdamW(model.parameters()))

    def check(found, expected, what):
        assert found.keys() == expected.keys(), what
        wrong = [name for name, value in found.items() if not torch.equal(value, expected[name])]
        assert wrong == [], (what, wrong)

    ids = torch.arange(3, 10).view(1, 7)
    for number, (saved, loaded) in enumerate([(3, 2), (3, 1), (2, 1), (1, 2), (2, 3), (1, 3)]):
        accelerator, expected, _, _ = make(saved, seed=1)
        accelerator.save_state(f"run_{number}")
        accelerator, others, model, _ = make(loaded, seed=2)
        assert not torch.equal(others["words.weight"], expected["words.weight"])
        accelerator.load_state(f"run_{number}")
        module = accelerator.unwrap_model(model)
        what = f"{saved} to {loaded}"
        if loaded < 3:
            check(model.state_dict(), expected, what)
            check(dict(module.named_parameters(remove_duplicate=False)),
                  {name: expected[name] for name, _ in
                   module.named_parameters(remove_duplicate=False)}, what)
            file = io.BytesIO()
            torch.save(module.state_dict(), file)
            file.seek(0)
            check(torch.load(file), expected, what)
            plain = Net()
            plain.load_state_dict(expected)
            assert torch.equal(module.eval()(ids), plain.eval()(ids)), what
        state = accelerator.get_state_dict(model)
        accelerator.save_model(model, f"model_{number}")
        if accelerator.is_main_process:
            check(state, expected, what)
            read = load_file(f"model_{number}/model.safetensors")
            check(read, {name: expected[name] for name in read}, what)
            assert expected.keys() - read.keys() == {"head.weight"}
    print("loaded", accelerator.process_index)
"""


def test_weights_are_those_that_were_saved_right_after_loading(tmp_path):
    out = ranks.fork_ours(LOADED, tmp_path)
    assert "loaded 0" in out and "loaded 1" in out


WRITTEN = COMMON + """
    from pathlib import Path
    from own_engine import HostBytes
    host = HostBytes()

    class Wide(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(
                torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512))
                for _ in range(16))
            self.tied = self.blocks[3]

    class Named(Wide):
        "With a state that C++ does not know."
        def get_extra_state(self):
            return torch.ones(1)
        def set_extra_state(self, state):
            pass

    def save(folder, kind, stage, **how):
        "The most that this process's tensors take meanwhile."
        fields = dict(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1000) if stage else {}
        accelerator = begin(steps=1, **fields)
        torch.manual_seed(1)
        model = accelerator.prepare(kind())
        gc.collect()
        return host.most_during(lambda: accelerator.save_model(model, folder, **how))

    def contents(folder):
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}

    num_bytes = 16 * 512 * 512 * 4
    rank = begin(steps=1).process_index
    for number, how in enumerate([{}, {"max_shard_size": "3MB"}]):
        save(f"expected_{number}", Wide, 0, **how)
        most = save(f"sharded_{number}", Wide, 3, **how)
        # Of 16 units one that was gathered, one that goes, and one that the backend lets go.
        assert num_bytes / 32 < most < num_bytes / 4, (most, num_bytes)
        if rank == 0:
            assert contents(f"sharded_{number}") == contents(f"expected_{number}")
            assert ("model.safetensors.index.json" in contents(f"sharded_{number}")) == bool(how)
    # What hooks of modules make of it, and pickles, are gathered first.
    for name, kind, how in [("extra", Named, {}), ("pickle", Wide, {"safe_serialization": False})]:
        save(f"expected_{name}", kind, 0, **how)
        most = save(f"sharded_{name}", kind, 3, **how)
        if rank == 0:
            assert contents(f"sharded_{name}").keys() == contents(f"expected_{name}").keys()
            assert most > num_bytes / 2, (most, num_bytes)
            if name == "extra":
                assert contents(f"sharded_{name}") == contents(f"expected_{name}")
    # What cannot be written leaves no process waiting.
    Path(f"file_{rank}").write_text("in the way")
    begin(steps=1).wait_for_everyone()
    def into_a_file():
        save("file_0", Wide, 3)
    refused(into_a_file, "file_0") if rank == 0 else into_a_file()
    print("written", rank)
"""


def test_a_sharded_model_is_written_unit_by_unit(tmp_path):
    out = ranks.fork_ours(WRITTEN, tmp_path)
    assert "written 0" in out and "written 1" in out


# What Trainer learns from, inside of a script.
ROWS = """
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            generator = torch.Generator().manual_seed(index)
            ids = torch.randint(3, 33, (7,), generator=generator)
            return {"input_ids": ids, "labels": ids}
"""

TRAINER = """
    import os, sys
    os.environ.update(HF_HUB_OFFLINE="1")
    import torch, transformers
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
    from accelerate.state import AcceleratorState
    transformers.logging.set_verbosity_error()
""" + ROWS + """
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


LORA = """
    import os, sys
    os.environ.update(HF_HUB_OFFLINE="1")
    import torch, transformers
    from peft import LoraConfig, PeftModel, get_peft_model
    from peft.utils.other import fsdp_auto_wrap_policy
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import FullyShardedDataParallelPlugin
    transformers.logging.set_verbosity_error()
    rank = int(os.environ["RANK"])

    def llama():
        torch.manual_seed(1)
        return LlamaForCausalLM(LlamaConfig(
            vocab_size=33, hidden_size=16, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=2, max_position_embeddings=32, pad_token_id=0, bos_token_id=2,
            eos_token_id=None))

    def adapted():
        base = llama()
        torch.manual_seed(2)
        return get_peft_model(base, LoraConfig(
            r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM",
            init_lora_weights=False))
"""

LORA_LOOP = LORA + """
    def train(has_policy=False, **fields):
        AcceleratorState._reset_state()
        os.environ.pop("ACCELERATE_USE_FSDP", None)
        plugin = FullyShardedDataParallelPlugin(**fields) if fields else None
        accelerator = Accelerator(fsdp_plugin=plugin)
        model = adapted()
        if has_policy:
            plugin.auto_wrap_policy = fsdp_auto_wrap_policy(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        # Trainer makes such groups, of which one has nothing to train.
        optimizer = torch.optim.AdamW([{"params": []}, {"params": trained}], lr=0.01)
        model, optimizer = accelerator.prepare(model, optimizer)
        for step in range(4):
            generator = torch.Generator().manual_seed(10 * step + rank)
            ids = torch.randint(3, 33, (4, 7), generator=generator)
            accelerator.backward(model(input_ids=ids, labels=ids).loss)
            optimizer.step()
            optimizer.zero_grad()
        return accelerator, model

    _, model = train()
    whole = {name: value.clone() for name, value in model.state_dict().items()}
    tokens = torch.tensor([[3, 4, 5], [6, 7, 8]]) + rank
    expected = model.generate(input_ids=tokens, max_new_tokens=4, do_sample=False)
    for number, fields in enumerate((
        dict(fsdp_version=2, auto_wrap_policy="TRANSFORMER_BASED_WRAP"),
        dict(has_policy=True, sharding_strategy="FULL_SHARD"),
        dict(has_policy=True, sharding_strategy="SHARD_GRAD_OP"),
    )):
        accelerator, model = train(**fields)
        state = accelerator.get_state_dict(model)
        if rank == 0:
            assert state.keys() == whole.keys()
            assert [k for k, v in state.items() if not torch.equal(v, whole[k])] == []
        found = model.generate(input_ids=tokens, max_new_tokens=4, do_sample=False)
        assert torch.equal(found, expected)
        num = 2 + 3 * rank
        assert model.generate(input_ids=tokens, max_new_tokens=num).shape == (2, 3 + num)
        own = accelerator.unwrap_model(model)
        assert isinstance(model, PeftModel) and isinstance(own, PeftModel)
        if rank == 0:
            own.save_pretrained(f"adapter_{number}", state_dict=state)
            again = PeftModel.from_pretrained(llama(), f"adapter_{number}").state_dict()
            assert [k for k, v in again.items() if not torch.equal(v, whole[k])] == []
        # With a group that has nothing to train.
        accelerator.save_state(f"state_{number}")
        accelerator.load_state(f"state_{number}")
    print("adapted", rank)
"""

LORA_TRAINER = LORA + ROWS + """
    def run(folder, resume=None, **fields):
        AcceleratorState._reset_state(True)
        for name in [name for name in os.environ if "FSDP" in name]:
            del os.environ[name]
        args = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=2, max_steps=4, save_steps=2, seed=3,
            logging_steps=1, use_cpu=True, report_to=[], learning_rate=0.01, disable_tqdm=True,
            **fields)
        trainer = Trainer(model=adapted(), args=args, train_dataset=Rows())
        trainer.train(resume_from_checkpoint=resume)
        trainer.save_model(folder)
        if rank == 0:
            return PeftModel.from_pretrained(llama(), folder).state_dict()

    plain = run("plain")
    fields = dict(fsdp="full_shard auto_wrap", fsdp_config={
        "version": int(sys.argv[1]), "state_dict_type": "FULL_STATE_DICT"})
    first = run("first", **fields)
    again = run("again", resume="first/checkpoint-2", **fields)
    if rank == 0:
        # The adapter alone.
        assert len(torch.load("first/checkpoint-2/pytorch_model_fsdp.bin")) == 8
        for name, value in plain.items():
            assert torch.equal(first[name], value), name
            assert torch.equal(again[name], value), ("resumed", name)
    print("adapted", rank)
"""


def check_lora(folder: Path, script: str, *arguments: str) -> None:
    out = ours_with_libraries("trainer.py").run(script, folder, *arguments)
    assert "adapted 0" in out and "adapted 1" in out


def test_lora_trains_generates_and_is_saved(tmp_path):
    check_lora(tmp_path, LORA_LOOP)


@pytest.mark.parametrize("version", cases(["1", "2"], small=["2"]))
def test_lora_in_a_trainer_goes_on(tmp_path, version):
    check_lora(tmp_path, LORA_TRAINER, version)


# --- the plugin -------------------------------------------------------------------------------

# Variables and arguments; both packages return fields, or the kind of their exception.
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
        except ValueError:
            answers.append("ValueError")
        else:
            answers.append({name: getattr(value, "__name__", str(value))
                            for name, value in vars(plugin).items()})
    print(json.dumps(answers))
"""


def test_fields_and_variables_are_read_as_the_original_does(tmp_path):
    def answers(output: str) -> list:
        return json.loads(output.splitlines()[-1])

    theirs = answers(ranks.fork_original(FIELDS, tmp_path, num_ranks=1))
    assert answers(ranks.fork_ours(FIELDS, tmp_path, num_ranks=1)) == theirs
    assert len(theirs) == 19 and theirs.count("ValueError") == 10


REFUSED = COMMON + """
    launched = {name: value for name, value in os.environ.items() if "FSDP" in name}
    for name in launched:
        del os.environ[name]
    Plugin = FullyShardedDataParallelPlugin
    accelerator = begin(ignored_modules=[torch.nn.Linear(1, 1)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator.prepare(Net())
    assert "ignored_modules matches no parameter of this Net" in str(caught[-1].message)
    refused(lambda: begin(param_init_fn=lambda module: None), "param_init_fn")
    refused(lambda: begin(state_dict_type="LOCAL_STATE_DICT"), "LOCAL_STATE_DICT")
    refused(lambda: begin(fsdp_version=2, activation_checkpointing=True,
                          activation_checkpointing_offload=True), "offload")
    refused(lambda: begin(mixed_precision_policy="bf16"), "mixed_precision_policy")
    refused(lambda: Accelerator(fsdp_plugin="FULL_SHARD"), "FullyShardedDataParallelPlugin")
    for name, value, words in [
            ("fsdp_version", "2", 'fsdp_version is "2" (a string), expected 1 or 2. Write 2 without'),
            ("fsdp_version", True, "fsdp_version is true (a boolean)"),
            ("fsdp_version", 3, "fsdp_version is 3 (a number)"),
            ("activation_checkpointing", "maybe", 'is "maybe" (a string), expected true or false'),
            ("cpu_ram_efficient_loading", [1], "cpu_ram_efficient_loading is [1] (a list)"),
            ("min_num_params", 1.5, "min_num_params is 1.5 (a number), expected a whole number"),
            ("transformer_cls_names_to_wrap", 3, "transformer_cls_names_to_wrap is 3 (a number)"),
            ("auto_wrap_policy", 3, "auto_wrap_policy is 3 (a number)"),
            ("ignored_modules", 3, "ignored_modules is 3 (a number)"),
            ("sharding_strategy", 0, "ShardingStrategy")]:
        refused(lambda: Plugin(**{name: value}), words)
    refused(lambda: Plugin(fsdp_version=2, reshard_after_forward="maybe"),
            "[FSDP] reshard_after_forward set to maybe")
    assert Plugin(activation_checkpointing="false").activation_checkpointing is False
    for name, words in [("FSDP_VERSION", 'FSDP_VERSION is "two"'),
                        ("FSDP_ACTIVATION_CHECKPOINTING", "FSDP_ACTIVATION_CHECKPOINTING is 'two'")]:
        os.environ[name] = "two"
        refused(Plugin, words)
        del os.environ[name]
    accelerator = begin(auto_wrap_policy="transformer_based_wrap",
                        transformer_cls_names_to_wrap=["Nobody"])
    refused(lambda: accelerator.prepare(Net()), "Nobody")
    accelerator = begin(activation_checkpointing=True)
    refused(lambda: accelerator.prepare(Net()), "auto_wrap_policy")
    accelerator = begin(ignored_modules="(")
    refused(lambda: accelerator.prepare(Net()), "[FSDP] ignored_modules is '('")
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
    out = ranks.fork_ours(NEW_STATE, tmp_path)
    assert "took 0" in out and "took 1" in out


def test_what_cannot_be_right_is_refused_in_one_line(tmp_path):
    # What the original's `accelerate config` writes, overridden by a flag.
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


KINDS = """
    import os
    import torch
    from accelerate import Accelerator
    from accelerate.errors import CommError, MismatchError, UsageError
    from accelerate.state import AcceleratorState
    from accelerate.utils import FullyShardedDataParallelPlugin
    from torch.utils.checkpoint import checkpoint
    rank = int(os.environ["RANK"])

    class Net(torch.nn.Module):
        def __init__(self, width=4):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
            self.tail = torch.nn.Linear(4, width)
            self.order = [0, 1, 2]
            self.places = None

        def forward(self, x):
            if self.places is not None:
                return checkpoint(
                    lambda y: self.layers[next(self.places)](y), x, use_reentrant=False)
            for place in self.order:
                x = self.layers[place](x)
            return self.tail(x)

    def begin(reshard, width=4):
        AcceleratorState._reset_state()
        accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(
            fsdp_version=2, reshard_after_forward=reshard,
            # Every block is a unit, however small.
            auto_wrap_policy="TRANSFORMER_BASED_WRAP", transformer_cls_names_to_wrap=["Linear"]))
        model = Net(width)
        return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))

    def raised(kind, function, *words):
        try:
            function()
        except Exception as error:
            assert type(error) is kind, (type(error), error)
            text = str(error)
            assert all(word in text for word in words) and "\\n" not in text, text
            return text
        raise AssertionError(f"nothing was raised: {words}")

    x = torch.ones(2, 4)
    for reshard in (True, False):
        accelerator, model, optimizer = begin(reshard)
        accelerator.backward(model(x).sum())
        optimizer.step()
        optimizer.zero_grad()
        # In a hook of autograd's.
        raised(UsageError, lambda: model(x).sum().backward(), "accelerator.backward")
        if reshard:
            # In operators, and in one that would write.
            raised(UsageError, lambda: model.layers[0].weight + 1, "unit 'layers.0'", "outside")
            with torch.no_grad():
                raised(UsageError, lambda: model.layers[0].weight.add_(1), "would write")
            # In an operator of forward, and in one of a block that is computed again in backward.
            model.order = [0, 1, 2] if rank == 0 else [1, 0, 2]
            raised(MismatchError, lambda: model(x), "unit 'layers.0'", "unit 'layers.1'")
            model.order = [0, 1, 2]
            model.places = iter([0, rank])
            output = model(x.clone().requires_grad_())
            raised(MismatchError, lambda: accelerator.backward(output.sum()), "unit 'layers.1'")
            model.places = None
        model.layers[1].scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)
        model(x)
        model.added = torch.nn.Linear(4, 4)
        raised(UsageError, lambda: model(x), "'added.weight' was added after prepare")
        with torch.no_grad():
            model(x)
    # Models that differ: what is first of it, and how much there is, not all names.
    text = raised(MismatchError, lambda: begin(True, width=4 + rank), "tail.weight", "rank 1",
                  "entry 8 of 10")
    assert "layers" not in text.split("was called", 1)[1], text
    # A rank that is gone, in an operator of forward.
    accelerator, model, optimizer = begin(True)
    model(x)
    if rank == 1:
        os._exit(0)
    def forever():
        while True:
            accelerator.backward(model(x).sum())
    raised(CommError, forever)
    print("kinds are kept")
"""


def test_exceptions_have_one_class_on_every_path(tmp_path):
    """Through operators, autograd and bindings, which torch's own turn into a RuntimeError."""
    assert "kinds are kept" in ranks.fork_ours(KINDS, tmp_path)


def test_stage_3_works_with_another_default_dtype(tmp_path):
    script = """
    import torch
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin

    torch.set_default_dtype(torch.float64)
    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
    model = accelerator.prepare(torch.nn.Linear(3, 1))
    loss = model(torch.ones(2, 3)).sum()
    accelerator.backward(loss)
    answer(str(loss.dtype))
    """
    assert ranks.run_ours(script, tmp_path) == ["torch.float64"] * 2


def test_a_hybrid_strategy_has_a_copy_on_each_machine(tmp_path):
    """Four processes that simulate two machines with two each."""
    script = """
    import os
    rank = int(os.environ["RANK"])
    os.environ.update(LOCAL_WORLD_SIZE="2", LOCAL_RANK=str(rank % 2))
    import torch
    from accelerate import Accelerator
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.state import AcceleratorState
    from accelerate.utils import (
        FullyShardedDataParallelPlugin, load_fsdp_optimizer, save_fsdp_optimizer)

    def train(strategy):
        AcceleratorState._reset_state(True)
        config = None
        if strategy == "CONFIG":
            plugin = FullyShardedDataParallelPlugin(
                fsdp_version=2, state_dict_type="FULL_STATE_DICT"
            )
            config = ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)
        else:
            plugin = strategy and FullyShardedDataParallelPlugin(sharding_strategy=strategy)
        accelerator = Accelerator(fsdp_plugin=plugin, parallelism_config=config)
        if config is not None:
            assert accelerator.data_parallel_rank == rank // 2
            assert accelerator.data_parallel_shard_rank == rank % 2
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
        weights = {k: v.clone() for k, v in accelerator.get_state_dict(net).items()}
        if plugin is None:
            names = [name.removeprefix("module.") for name, _ in net.named_parameters()]
            moments = [optimizer.state[p]["exp_avg"] for p in net.parameters()]
            return own, weights, dict(zip(names, moments))
        # What is saved of the optimizer is whole, and loads again.
        save_fsdp_optimizer(plugin, accelerator, optimizer, net, strategy)
        accelerator.wait_for_everyone()
        saved = torch.load(f"{strategy}/optimizer.bin", weights_only=False)["state"]
        load_fsdp_optimizer(plugin, accelerator, optimizer, net, strategy)
        return own, weights, {name: entry["exp_avg"] for name, entry in saved.items()}

    whole, plain, plain_moments = train(None)
    for strategy, parts in (
            ("HYBRID_SHARD", 2), ("HYBRID_SHARD_ZERO2", 2), ("FULL_SHARD", 4), ("CONFIG", 2)):
        own, sharded, moments = train(strategy)
        # Parts begin at multiples of 64 numbers.
        assert abs(own - whole / parts) <= 64 * 4, (strategy, own, whole)
        if rank == 0:
            # Sums over four ranks are added up in another order.
            worst = max((plain[k] - sharded[k]).abs().max().item() for k in plain)
            assert worst <= 1e-6, (strategy, worst)
            assert moments.keys() == plain_moments.keys()
            for name, moment in moments.items():
                torch.testing.assert_close(moment, plain_moments[name], rtol=0, atol=1e-6)
    print("alike", rank)
    """
    out = ranks.fork_ours(script, tmp_path, num_ranks=4)
    assert sorted(line for line in out.splitlines() if line.startswith("alike")) == [
        f"alike {rank}" for rank in range(4)
    ]
