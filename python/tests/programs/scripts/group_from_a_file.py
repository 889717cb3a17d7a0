# SPDX-License-Identifier: Apache-2.0
import sys

import torch.multiprocessing as mp


def train(rank, path):
    import torch
    import torch.distributed as dist
    from accelerate import Accelerator

    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
    accelerator = Accelerator()
    assert accelerator.gather(torch.tensor([rank])).tolist() == [0, 1]
    print(f"met {accelerator.process_index} of {accelerator.num_processes}", flush=True)


if __name__ == "__main__":
    mp.spawn(train, args=(sys.argv[1] + "/meeting",), nprocs=2)
