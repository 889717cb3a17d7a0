# SPDX-License-Identifier: Apache-2.0
"""Runs a model from disk in a third of the memory that it needs. Arguments: a folder, "write" or
"run", and then what to do: "forward", "train" or "whole"."""

from __future__ import annotations

import hashlib
import json
import resource
import sys
from pathlib import Path

import torch
from accelerate import disk_offload, init_empty_weights
from accelerate.utils import offload_state_dict

LAYERS, WIDTH = 24, 1024
MODEL_BYTES = LAYERS * WIDTH * WIDTH * 4
LIMIT_BYTES = MODEL_BYTES // 3


class Adapted(torch.nn.Module):
    """A frozen layer on disk and a small one that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.base(x) * 1.7 + self.small(x)) + x / 2


def empty_model() -> torch.nn.Sequential:
    with init_empty_weights():
        return torch.nn.Sequential(*(Adapted() for _ in range(LAYERS)))


def weights() -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(3)
    size = (WIDTH, WIDTH)
    return {
        f"{i}.base.weight": torch.randn(size, generator=rng) / WIDTH**0.5 for i in range(LAYERS)
    }


def add_adapters(model: torch.nn.Sequential) -> list[torch.nn.Parameter]:
    torch.manual_seed(5)
    for layer in model:
        layer.small = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 2, bias=False), torch.nn.Linear(2, WIDTH, bias=False)
        )
    return [p for p in model.parameters() if p.requires_grad]


def digest(tensors: list[torch.Tensor]) -> str:
    data = b"".join(bytes(t.detach().reshape(-1).view(torch.uint8).tolist()) for t in tensors)
    return hashlib.sha256(data).hexdigest()


def run(model: torch.nn.Sequential, adapters: list[torch.nn.Parameter], what: str) -> str:
    x = torch.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH)
    if what == "forward":
        with torch.no_grad():
            return digest([model(x)])
    for _ in range(2):
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in adapters:
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
    return digest([loss, *adapters])


def used_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmData")


def limit_memory() -> None:
    limit = used_bytes() + LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main(folder: Path, what: str) -> None:
    torch.set_num_threads(1)
    if what == "write":
        state = weights()
        offload_state_dict(folder, state)
        found = {}
        for name in ("forward", "train"):
            model = empty_model()
            model.load_state_dict(state, assign=True)
            model.requires_grad_(False)
            found[name] = run(model, add_adapters(model), name)
        print(json.dumps(found))
        return
    model = empty_model()
    # What torch allocates once does not count.
    warm = torch.nn.Linear(8, 8)
    warm(torch.ones(2, 8)).sum().backward()
    if what == "whole":
        limit_memory()
        try:
            held = [torch.empty(WIDTH, WIDTH).zero_() for _ in range(LAYERS)]
        except RuntimeError as error:
            print(json.dumps("not enough memory" in str(error) or "allocate" in str(error)))
        else:
            print(json.dumps(f"{len(held)} layers fit"))
        return
    disk_offload(model, folder, execution_device="cpu")
    adapters = add_adapters(model)
    limit_memory()
    print(json.dumps(run(model, adapters, what)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
