# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from answers import answer

plugin = FullyShardedDataParallelPlugin(sharding_strategy="FULL_SHARD")
accelerator = Accelerator(fsdp_plugin=plugin)
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
torch.nn.init.ones_(net[0].bias)
torch.nn.init.ones_(net[1].weight)
parameters = [list(layer.parameters()) for layer in net]
net, sgd = accelerator.prepare(net, torch.optim.SGD(parameters[1], lr=1.0))
sgd.add_param_group({"params": parameters[0]})
accelerator.backward(net(torch.ones(1, 2)).sum())
sgd.step()
state = accelerator.get_state_dict(net)
if accelerator.is_main_process:
    assert torch.equal(state["0.bias"], torch.zeros(2)), state
answer("trained")
