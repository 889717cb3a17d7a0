# SPDX-License-Identifier: Apache-2.0
import sys

import torch
from accelerate import Accelerator

mistake = sys.argv[1]


class Rows(torch.utils.data.Dataset):
    rows = [torch.ones(2)]

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.rows[index]


accelerator = Accelerator()
loader = torch.utils.data.DataLoader(Rows(), num_workers=int(mistake == "worker of a loader"))
net, loader = accelerator.prepare(torch.nn.Linear(2, 1), loader)
loss = net(torch.ones(1, 2)).square().sum()
if mistake == "missing module":
    import torhc  # noqa: F401
elif mistake == "wrong shape":
    net(torch.ones(2, 3))
elif mistake == "backward twice":
    accelerator.backward(loss); accelerator.backward(loss)  # fmt: skip
elif mistake == "worker of a loader":
    list(loader)
elif mistake == "memory":
    torch.empty(1 << 60)
