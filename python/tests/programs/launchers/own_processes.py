# SPDX-License-Identifier: Apache-2.0
import torch.distributed as dist
import torch.multiprocessing as mp
from accelerate.launchers import PrepareForLaunch


def show():
    if dist.get_rank() == 1:
        print(dist.get_world_size(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(PrepareForLaunch(show, debug=True), nprocs=2, start_method="fork")
