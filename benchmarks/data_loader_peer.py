# SPDX-License-Identifier: Apache-2.0
"""The peers of data_loader.cpp: PyTorch's loader, and Hugging Face's prepared one.

Prints the time per sample in microseconds.
"""
import sys
import time

# Beside this file lies a safetensors.py that is no package.
del sys.path[0]

import torch

SAMPLES, TOKENS, BATCH = 20000, 128, 32


class Texts(torch.utils.data.Dataset):
    def __init__(self):
        self.ids = torch.randint(0, 30000, (SAMPLES, TOKENS))
        self.mask = torch.ones_like(self.ids)
        self.types = torch.zeros_like(self.ids)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": self.mask[i],
                "token_type_ids": self.types[i]}


def main():
    library, mode = sys.argv[1:]
    workers = 2 if mode == "workers_2" else 0
    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(
        Texts(), batch_size=BATCH, shuffle=True, num_workers=workers,
        persistent_workers=workers > 0)
    ranks, is_main = 1, True
    if library == "accelerate":
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(
            dispatch_batches=mode == "dispatch"))
        ranks, is_main = accelerator.num_processes, accelerator.is_main_process
        assert ranks == (2 if mode == "dispatch" else 1), ranks
        loader = accelerator.prepare(loader)

    def epoch():
        return sum(batch["input_ids"].shape[0] for batch in loader)

    epoch()  # Starts the workers, which are kept.
    begin = time.perf_counter()
    samples = epoch() * ranks
    if is_main:
        print((time.perf_counter() - begin) * 1e6 / samples)


main()
