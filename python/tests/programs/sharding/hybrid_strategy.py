# SPDX-License-Identifier: Apache-2.0
import os

rank = int(os.environ["RANK"])
os.environ.update(LOCAL_WORLD_SIZE="2", LOCAL_RANK=str(rank % 2))
import torch
from accelerate import Accelerator
from accelerate.parallelism_config import ParallelismConfig
from accelerate.state import AcceleratorState
from accelerate.utils import (
    FullyShardedDataParallelPlugin,
    load_fsdp_optimizer,
    save_fsdp_optimizer,
)


def train(strategy):
    AcceleratorState._reset_state(True)
    config = None
    if strategy == "CONFIG":
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="FULL_STATE_DICT")
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
    ("HYBRID_SHARD", 2),
    ("HYBRID_SHARD_ZERO2", 2),
    ("FULL_SHARD", 4),
    ("CONFIG", 2),
):
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
