# SPDX-License-Identifier: Apache-2.0
import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.inner = torch.nn.Linear(16, 48)
        self.outer = torch.nn.Linear(48, 16)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(self.norm(x))))


class Net(torch.nn.Module):
    "Tied, frozen, unused parameters, one of no dimension, buffers that training changes."

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(33, 16)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
        self.batch_norm = torch.nn.BatchNorm1d(16)
        self.unused = torch.nn.Linear(5, 3)
        self.head = torch.nn.Linear(16, 33, bias=False)
        self.head.weight = self.words.weight
        self.blocks[1].inner.weight.requires_grad_(False)
        self.scale = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, input_ids, labels=None):
        x = self.words(input_ids)
        for block in self.blocks:
            x = block(x)
        x = self.batch_norm(x.mean(1)) * self.scale
        return torch.nn.functional.cross_entropy(self.head(x), input_ids[:, 0])
