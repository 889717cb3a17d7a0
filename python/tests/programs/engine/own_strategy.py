# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(5)
        self.first = torch.nn.Linear(5, 7)
        self.second = torch.nn.Linear(7, 1)
        self.fails = False

    def forward(self, x):
        if self.fails:
            raise ValueError("no forward today")
        return self.second(torch.tanh(self.first(self.norm(x))))


def train(handlers):
    accelerator = Accelerator(gradient_accumulation_steps=2, kwargs_handlers=handlers)
    torch.manual_seed(3)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    optimizer, prepared = accelerator.prepare(optimizer, model)
    generator = torch.Generator().manual_seed(17 + accelerator.process_index)
    norms = []
    for step in range(6):
        with accelerator.accumulate(prepared):
            loss = prepared(torch.randn(4, 5, generator=generator)).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(prepared.parameters(), 0.5).item())
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 4 != 3)
    return accelerator, prepared, optimizer, norms
