# SPDX-License-Identifier: Apache-2.0
# What Trainer learns from, inside of a script.

import torch


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(3, 33, (7,), generator=generator)
        return {"input_ids": ids, "labels": ids}
