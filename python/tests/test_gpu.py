# SPDX-License-Identifier: Apache-2.0
"""On a GPU: precision, placement, and groups with and without NCCL."""

from __future__ import annotations

import pytest
import ranks
import torch
from both_packages import Runs, differences, python_with

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

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
    assert ours["files"] == original["files"]
    whole, resumed = ours["whole"], ours["resumed"]
    assert whole["scale"] == original["whole"]["scale"]
    for theirs, mine in zip(original["whole"]["history"], whole["history"], strict=True):
        # The norm that clips is summed in another order, and weights are rounded to fp16.
        assert mine == pytest.approx(theirs, rel=2e-3)
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
