# SPDX-License-Identifier: Apache-2.0
"""On a GPU: precision, placement, and groups with and without NCCL."""

from __future__ import annotations

import os

import pytest
import ranks
import torch
from both_packages import Runs, differences, python_with

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def nccl_variables(num_ranks: int) -> dict[str, str]:
    """Environment variables with which NCCL ranks run here. They share a GPU if there are fewer
    than ranks, which NCCL 2.30 and later allow; see docs/building.md."""
    if torch.cuda.device_count() >= num_ranks:
        return {}
    variables = {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        # With few blocks per kernel, ranks do not wait for each other to get onto the GPU.
        "NCCL_MAX_CTAS": "4",
    }
    if library := os.environ.get("ACCELERATE_TEST_NCCL"):
        return {**variables, "LD_PRELOAD": library}
    version = torch.cuda.nccl.version()
    if version < (2, 30):
        pytest.skip(
            f"{num_ranks} NCCL ranks need {num_ranks} GPUs, or NCCL 2.30 or later to share one. "
            f"This machine has {torch.cuda.device_count()} and NCCL {'.'.join(map(str, version))}. "
            "Set ACCELERATE_TEST_NCCL to a newer libnccl.so.2 (docs/building.md)."
        )
    return variables


def launch(num_processes: int) -> list[str]:
    return ["accelerate", "launch", "--num_processes", str(num_processes)]


FP16 = """
    import torch
    from accelerate import Accelerator

    def make():
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
        return net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def batches():
        torch.manual_seed(4)
        for step in range(12):
            x = torch.randn(8, 16)
            # Steps 3 and 7 overflow in fp16, so that a scaler must leave them out.
            yield x * (1e6 if step in (3, 7) else 1), x[:, :4].argmax(1)

    accelerator = Accelerator(mixed_precision="fp16")
    net, optimizer = make()
    net, optimizer = accelerator.prepare(net, optimizer)
    loader = accelerator.prepare(torch.utils.data.DataLoader(list(batches()), batch_size=None))
    ours, skipped = [], []
    for x, y in loader:
        assert x.is_cuda and y.is_cuda
        out = net(x)
        assert out.dtype == torch.float32
        loss = torch.nn.functional.cross_entropy(out, y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        skipped.append(accelerator.optimizer_step_was_skipped)
        optimizer.zero_grad()
        ours.append(loss.item())

    plain, optimizer = make()
    plain.cuda()
    scaler = torch.amp.GradScaler("cuda")
    theirs = []
    for x, y in batches():
        with torch.autocast("cuda", torch.float16):
            out = plain(x.cuda())
        loss = torch.nn.functional.cross_entropy(out.float(), y.cuda())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        theirs.append(loss.item())
    assert [i for i, s in enumerate(skipped) if s] == [3, 7], skipped
    for a, b in zip(ours, theirs):
        # The same kernels; the norm that clips is summed in another order.
        assert a == b or abs(a - b) <= 1e-5 * abs(b) or (a != a and b != b), (ours, theirs)
    print("equal")
"""


def test_fp16_trains_as_pytorchs_own_scaler(tmp_path):
    import sys

    assert "equal" in ranks.check(ranks.run([sys.executable], tmp_path, FP16))


def test_trainer_goes_on_in_fp16_as_if_it_had_not_ended(tmp_path):
    runs = Runs("trainer.py", tmp_path, python_with("libraries"), 1, ["resumed_fp16"])
    original, ours = (answers[0] for answers in runs.compared("resumed_fp16"))
    assert ours["device"] == "cuda" and "scaler.pt" in ours["files"]
    # Our kernel adds the squares of a norm in another order, which changes its last bit.
    norms = {
        name: [
            entry.pop("grad_norm")
            for run in ("whole", "resumed")
            for entry in answer[run]["history"]
            if "grad_norm" in entry
        ]
        for name, answer in (("original", original), ("ours", ours))
    }
    assert len(norms["ours"]) > 10
    assert norms["ours"] == pytest.approx(norms["original"], rel=2e-7)
    assert norms["ours"][len(norms["ours"]) // 2 :] == norms["ours"][: len(norms["ours"]) // 2]
    assert differences(original, ours) == []
    whole, resumed = ours["whole"], ours["resumed"]
    # The last line has the mean of the losses since the start.
    assert differences(whole.pop("history")[:-1], resumed.pop("history")[:-1]) == []
    assert differences(whole, resumed) == []


def test_processes_that_share_a_gpu_end_with_the_same_weights(tmp_path):
    script = """
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator(mixed_precision="bf16")
    torch.manual_seed(accelerator.process_index)
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.randn(32, 8), batch_size=4)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for batch in loader:
        assert batch.is_cuda
        accelerator.backward(net(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    weights = accelerator.gather(net.weight.detach()[None])
    assert weights.is_cuda and torch.equal(weights[0], weights[1])
    assert accelerator.gather(torch.tensor([accelerator.process_index])).tolist() == [0, 1]
    print("same", accelerator.process_index)
    """
    out = ranks.check(
        ranks.run(["accelerate", "launch", "--num_processes", "2"], tmp_path, script)
    )
    assert "same 0" in out and "same 1" in out


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_a_group_of_nccl_that_the_user_has_made_carries_cpu_values_too(tmp_path, backend):
    import sys

    script = f"""
    import torch, torch.distributed as dist
    from accelerate import Accelerator
    dist.init_process_group("{backend}", init_method="file://" + __file__ + ".meet", rank=0, world_size=1)
    accelerator = Accelerator()
    net = accelerator.prepare(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
    accelerator.backward(net(torch.randn(4, 2, device=accelerator.device)).sum())
    assert accelerator.gather(torch.ones(2)).tolist() == [1, 1]
    assert accelerator.gather(torch.ones(2, device="cuda")).is_cuda
    assert accelerator.gather_for_metrics(["word"]) == ["word"]
    accelerator.set_trigger()
    assert accelerator.check_trigger()
    accelerator.wait_for_everyone()
    accelerator.end_training()
    print("carried")
    """
    assert "carried" in ranks.check(ranks.run([sys.executable], tmp_path, script))


def test_a_notebook_with_cuda_in_use_launches_fresh_processes(tmp_path):
    import sys

    pytest.importorskip("cloudpickle")
    script = """
    import os
    import torch
    from accelerate import notebook_launcher
    torch.ones(1, device="cuda")

    def train():
        from accelerate import Accelerator
        accelerator = Accelerator()
        return accelerator.device.type, accelerator.gather(torch.ones(1, device="cuda")).sum().item()

    print(notebook_launcher(train))
    os.environ["ACCELERATE_USE_CPU"] = "1"

    def count():
        from accelerate import Accelerator
        return Accelerator().num_processes

    print("processes", notebook_launcher(count, num_processes=2))
    """
    out = ranks.check(ranks.run([sys.executable], tmp_path, script))
    assert "('cuda', 1.0)" in out and "processes 2" in out


SHARDED = """
    import gc, os
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin

    WIDTH = 256

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(WIDTH)
            self.inner = torch.nn.Linear(WIDTH, 2 * WIDTH)
            self.outer = torch.nn.Linear(2 * WIDTH, WIDTH)

        def forward(self, x):
            return x + self.outer(torch.nn.functional.gelu(self.inner(self.norm(x))))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block() for _ in range(6))
            self.blocks[2].inner.weight.requires_grad_(False)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    def fsdp(**fields):
        return dict(fsdp_plugin=FullyShardedDataParallelPlugin(
            auto_wrap_policy="TRANSFORMER_BASED_WRAP", transformer_cls_names_to_wrap=["Block"],
            **fields))

    def deepspeed(stage, **fields):
        return dict(deepspeed_plugin=DeepSpeedPlugin(
            zero_stage=stage, gradient_clipping=0.0, **fields))

    def train(steps=1, max_norm=None, **settings):
        # The group stays; of the last run nothing does.
        AcceleratorState._reset_state()
        os.environ.update(ACCELERATE_USE_FSDP="false", ACCELERATE_USE_DEEPSPEED="false")
        accelerator = Accelerator(gradient_accumulation_steps=steps, **settings)
        assert accelerator.device.type == "cuda"
        torch.manual_seed(3)
        gc.collect()
        before = torch.cuda.memory_allocated()
        model = Net()
        # A gradient of nearly zero moves nothing.
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)
        model, optimizer = accelerator.prepare(model, optimizer)
        generator = torch.Generator().manual_seed(7 + accelerator.process_index)
        for _ in range(6):
            x = torch.randn(4, WIDTH, generator=generator).cuda()
            with accelerator.accumulate(model):
                accelerator.backward(model(x).square().mean())
                if max_norm and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), max_norm)
                optimizer.step()
                optimizer.zero_grad()
        gc.collect()
        at_rest = torch.cuda.memory_allocated() - before
        state = {name: value.cpu() for name, value in accelerator.get_state_dict(model).items()}
        return state, at_rest, (accelerator, model, optimizer)

    def is_cut(accelerator):
        "Whether parameters are, too."
        plugin = accelerator.deepspeed_plugin
        return accelerator.is_fsdp2 if plugin is None else plugin.zero_stage == 3

    def worst(state, expected):
        return max(((state[name] - expected[name]).abs().max().item() for name in state), default=0.)
"""

SHARDED_BY_TWO = SHARDED + """
    import sys
    from accelerate import PartialState
    assert PartialState(backend=sys.argv[1]).backend == sys.argv[1]
    FULL, HALF = dict(fsdp_version=2), dict(sharding_strategy="SHARD_GRAD_OP")
    train()  # Libraries take their own memory at the first step.
    for run in (dict(), dict(steps=2), dict(mixed_precision="bf16")):
        expected, whole, _ = train(**run)
        for settings in (fsdp(**FULL), fsdp(**HALF), deepspeed(1), deepspeed(2), deepspeed(3)):
            if "steps" in run and "deepspeed_plugin" in settings:
                continue  # Reduces each batch, so that sums are of another order.
            state, at_rest, (accelerator, model, optimizer) = train(**run, **settings)
            # The same kernels on the same numbers; two gradients are added, and halved.
            assert worst(state, expected) == 0, (run, settings, worst(state, expected))
            held = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
            assert held < 0.6 * sum(p.numel() for p in model.parameters())
            if is_cut(accelerator):
                # A half of weights and moments, and what fills parts up.
                assert at_rest < 0.6 * whole, (settings, at_rest, whole)
        # Clipping adds squares up in another order.
        expected, _, _ = train(**run, max_norm=0.1)
        state, _, _ = train(**run, max_norm=0.1, **fsdp(**FULL))
        assert worst(state, expected) < 1e-3, worst(state, expected)

    # Parts on the host, whose AdamW rounds differently.
    expected, whole, _ = train()
    num_saved = 0
    for settings in (
        fsdp(**FULL, cpu_offload=True),
        fsdp(**HALF, cpu_offload=True),
        deepspeed(1, offload_optimizer_device="cpu"),
        deepspeed(2, offload_optimizer_device="cpu"),
        deepspeed(3, offload_optimizer_device="cpu", offload_param_device="cpu"),
        deepspeed(3, offload_param_device="cpu"),
    ):
        state, at_rest, (accelerator, model, optimizer) = train(**settings)
        assert worst(state, expected) < 1e-3, (settings, worst(state, expected))
        parts = [p for group in optimizer.param_groups for p in group["params"]]
        assert all(p.device.type == "cpu" for p in parts)
        assert all(v.device.type == "cpu" for entry in optimizer.state.values()
                   for v in entry.values() if isinstance(v, torch.Tensor))
        if is_cut(accelerator):
            # Nothing but the last input and what libraries keep.
            assert at_rest < 0.1 * whole, (settings, at_rest, whole)
        folder = f"offloaded_{num_saved}"
        num_saved += 1
        accelerator.save_state(folder)
        with torch.no_grad():
            for part in parts:
                part.zero_()
        accelerator.load_state(folder)
        again = {name: value.cpu() for name, value in accelerator.get_state_dict(model).items()}
        assert worst(again, state) == 0
    # The norm of parts of the host; and fp16, whose flag of overflow is the device's.
    expected, _, _ = train(max_norm=0.1)
    state, _, _ = train(max_norm=0.1, **fsdp(**FULL, cpu_offload=True))
    assert worst(state, expected) < 1e-3, worst(state, expected)
    expected, _, _ = train(mixed_precision="fp16")
    for fields, bound in ((FULL, 0), ({**FULL, "cpu_offload": True}, 1e-3)):
        state, _, _ = train(mixed_precision="fp16", **fsdp(**fields))
        assert worst(state, expected) <= bound, (fields, worst(state, expected))
    # A policy that gathers bf16: the same numbers, whatever is cut.
    from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy
    bf16 = torch.bfloat16
    expected, _, _ = train(mixed_precision="bf16", **fsdp(
        **HALF, mixed_precision_policy=MixedPrecision(param_dtype=bf16, reduce_dtype=bf16)))
    state, _, _ = train(mixed_precision="bf16", **fsdp(
        **FULL, mixed_precision_policy=MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=bf16)))
    assert worst(state, expected) == 0, worst(state, expected)
    assert all(value.dtype == torch.float32 for name, value in state.items() if "norm" in name)
    # Without a stage that cuts it, nothing could move to the host.
    for settings in (fsdp(sharding_strategy="NO_SHARD", cpu_offload=True),
                     deepspeed(0, offload_optimizer_device="cpu"),
                     deepspeed(2, offload_param_device="cpu")):
        try:
            train(**settings)
        except ValueError as error:
            assert "\\n" not in str(error).strip() and "offload" in str(error), error
        else:
            raise AssertionError(f"nothing was refused: {settings}")
    print("sharded", accelerator.process_index)
"""


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_sharded_training_of_processes_that_share_a_gpu_equals_ddp(tmp_path, backend):
    variables = nccl_variables(2) if backend == "nccl" else {}
    out = ranks.check(ranks.run(launch(2), tmp_path, SHARDED_BY_TWO, backend, **variables))
    assert "sharded 0" in out and "sharded 1" in out


SHARDED_BY_NCCL = SHARDED + """
    import torch.distributed as dist
    dist.init_process_group("nccl", init_method="file://" + __file__ + ".meet", rank=0, world_size=1)
    HALF = dict(sharding_strategy="SHARD_GRAD_OP")
    # The sanitizer looks for the memory of arguments before their operators run, where parameters
    # that are gathered have none.
    is_watched = "TORCH_CUDA_SANITIZER" in os.environ
    every = [fsdp(**HALF), deepspeed(1), deepspeed(2)]
    if not is_watched:
        every += [fsdp(fsdp_version=2), deepspeed(3)]
    expected, _, _ = train()
    for settings in every:
        state, _, _ = train(**settings)
        assert worst(state, expected) == 0, (settings, worst(state, expected))
    # Parts on the host, whose AdamW rounds differently.
    fields = HALF if is_watched else dict(fsdp_version=2)
    state, _, _ = train(**fsdp(**fields, cpu_offload=True), max_norm=0.1)
    expected, _, _ = train(max_norm=0.1)
    assert worst(state, expected) < 1e-3, worst(state, expected)
    print("sharded")
"""


@pytest.mark.parametrize("variables", [{}, {"TORCH_CUDA_SANITIZER": "1"}], ids=["", "sanitizer"])
def test_sharded_training_by_nccl_equals_ddp(tmp_path, variables):
    """Also with torch's CUDA sanitizer, which detects streams that use memory too early."""
    import sys

    result = ranks.run([sys.executable], tmp_path, SHARDED_BY_NCCL, **variables)
    assert "sharded" in ranks.check(result)
    assert "CUDASanitizerErrors" not in result.stderr


CAPTURED_BY_NCCL = """
    import os, sys
    import torch, torch.distributed as dist
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    dist.init_process_group(sys.argv[1], init_method="file://" + __file__ + ".meet", rank=rank, world_size=size)
    nccl = dist.group.WORLD._get_backend(torch.device("cuda"))

    def train(captured, **options):
        AcceleratorState._reset_state()
        torch.manual_seed(3)
        accelerator = Accelerator(**options)
        # Buffers are shared inside of the step too.
        net = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(net.parameters(), lr=2.0**-6)
        net, optimizer = accelerator.prepare(net, optimizer)

        def function(x, y):
            loss = torch.nn.functional.mse_loss(net(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        step = accelerator.capture(function)
        losses = []
        begun = nccl._get_sequence_number_for_group()
        for i in range(40):
            generator = torch.Generator().manual_seed(i + 1000 * rank)
            x = torch.randn(5 if i % 7 == 0 else 8, 16, generator=generator).cuda()
            with accelerator.accumulate(net):
                losses.append((step if captured else function)(x, x.sum(1, keepdim=True)))
            if i == 20:
                with torch.no_grad():
                    net.eval()
                    net(x)
                    net.train()
        begun = nccl._get_sequence_number_for_group() - begun
        return torch.stack(losses), net.state_dict(), step, begun

    for options in ({}, {"gradient_accumulation_steps": 3}, {"mixed_precision": "bf16"}):
        expected, state, _, all_begun = train(False, **options)
        losses, same_state, step, begun = train(True, **options)
        assert step.refusal == "" and step.num_replays > 15, (options, step.refusal, step.num_replays)
        # NCCL is asked while a step is recorded; a replay asks it by itself.
        assert begun < all_begun, (options, begun, all_begun)
        bound = 5e-2 if "mixed_precision" in options else 1e-3
        torch.testing.assert_close(losses, expected, rtol=bound, atol=bound)
        for name, value in state.items():
            torch.testing.assert_close(same_state[name], value, rtol=bound, atol=bound, msg=name)
    print("captured")
"""


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_captured_steps_whose_gradients_meet_by_nccl_train_as_they_are_written(tmp_path, backend):
    import sys

    result = ranks.run([sys.executable], tmp_path, CAPTURED_BY_NCCL, backend)
    assert "captured" in ranks.check(result)
    assert "stream does not match" not in result.stderr


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_captured_steps_of_several_nccl_ranks_train_as_they_are_written(tmp_path, num_ranks):
    variables = nccl_variables(num_ranks)
    result = ranks.run(
        launch(num_ranks), tmp_path, CAPTURED_BY_NCCL, "cpu:gloo,cuda:nccl", **variables
    )
    assert ranks.check(result).count("captured") == num_ranks
    assert "stream does not match" not in result.stderr


BY_SEVERAL_NCCL_RANKS = SHARDED + """
    from accelerate import InitProcessGroupKwargs

    STEPS, MICRO_BATCHES, MAX_NORM = 2, 8, 0.1

    def make():
        torch.manual_seed(3)
        model = Net().double()
        return model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)

    def batch(rank, i):
        generator = torch.Generator().manual_seed(1000 * rank + i)
        return torch.randn(4, WIDTH, generator=generator, dtype=torch.float64).cuda()

    def train_plainly(size):
        model, optimizer = make()
        model.cuda()
        for i in range(MICRO_BATCHES):
            x = torch.cat([batch(rank, i) for rank in range(size)])
            (model(x).square().mean() / STEPS).backward()
            if (i + 1) % STEPS == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
                optimizer.zero_grad()
        return {name: value.cpu() for name, value in model.state_dict().items()}

    def train_by_nccl(**settings):
        AcceleratorState._reset_state()
        os.environ.update(ACCELERATE_USE_FSDP="false", ACCELERATE_USE_DEEPSPEED="false")
        # Given, although it equals the default: ranks that share a GPU would use Gloo otherwise.
        accelerator = Accelerator(
            gradient_accumulation_steps=STEPS,
            kwargs_handlers=[InitProcessGroupKwargs(backend="nccl")], **settings)
        assert accelerator.state.backend == "nccl", accelerator.state.backend
        model, optimizer = accelerator.prepare(*make())
        for i in range(MICRO_BATCHES):
            with accelerator.accumulate(model):
                accelerator.backward(model(batch(accelerator.process_index, i)).square().mean())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
                optimizer.zero_grad()
        return accelerator, {
            name: value.cpu() for name, value in accelerator.get_state_dict(model).items()}

    def zero(stage):
        # DeepSpeed's configuration clips; `clip_grad_norm_` leaves it to that.
        return dict(deepspeed_plugin=DeepSpeedPlugin(
            zero_stage=stage, gradient_accumulation_steps=STEPS, gradient_clipping=MAX_NORM))

    accelerator, state = train_by_nccl()
    size = accelerator.num_processes
    expected = train_plainly(size)
    every = [dict(), fsdp(fsdp_version=2), fsdp(sharding_strategy="SHARD_GRAD_OP"), zero(1), zero(2), zero(3)]
    for settings in every:
        accelerator, state = train_by_nccl(**settings)
        # Sums of fp64 are added in another order.
        assert worst(state, expected) < 1e-9, (settings, worst(state, expected))
    print("equal", accelerator.process_index)
"""


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_several_nccl_ranks_train_as_pytorch_in_one_process(tmp_path, num_ranks):
    variables = nccl_variables(num_ranks)
    result = ranks.run(launch(num_ranks), tmp_path, BY_SEVERAL_NCCL_RANKS, **variables)
    out = ranks.check(result)
    assert all(f"equal {rank}" in out for rank in range(num_ranks)), out
