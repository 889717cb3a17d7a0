# SPDX-License-Identifier: Apache-2.0
# Gradients of two processes are synchronised, and parameters may be sharded: each part of the
# script trains a model fused and not, from the same weights.

import sys

sys.path.append(sys.argv[1])
import torch
from accelerate import Accelerator
from accelerate._fuse import language_head
from accelerate.utils import FullyShardedDataParallelPlugin, set_seed
from answers import answer

from test_fuse import FAMILIES, inputs_for, is_fused

language_head.is_padded = lambda x, kind: True
plugin = FullyShardedDataParallelPlugin(fsdp_version=2) if "sharded" in sys.argv else None
accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
losses = dict()
for family in ("gpt2", "bert", "llama"):
    for fuse in (True, False):
        set_seed(5)
        model = FAMILIES[family][0]()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        torch.manual_seed(accelerator.process_index)
        inputs = inputs_for(model)
        model, optimizer = accelerator.prepare(model, optimizer, fuse=fuse)
        assert is_fused(model) == fuse
        model.train()
        told = losses[family + " " + str(fuse)] = []
        for _ in range(3):
            loss = model(**inputs).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            told.append(accelerator.gather(loss.detach().view(1)).tolist())
answer(losses)
