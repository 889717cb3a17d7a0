# SPDX-License-Identifier: Apache-2.0
"""The accelerated example is the plain one plus the seed page's changes.

C++ cannot rebind names, so those that `prepare` returns are mapped to the
original ones first; then lines are compared and the difference is printed.
"""
import difflib
import pathlib

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
NEW_NAMES = {"train_loader": "train_dataloader", "net": "model", "opt": "optimizer"}

ADDED = [
    "#include <accelerate/accelerator.h>",
    "accelerate::Accelerator accelerator;",
    "auto [train_dataloader, model, optimizer] =",
    "accelerator.prepare(train_dataloader, model, optimizer);",
    "accelerator.backward(loss);",
]
REMOVED = [
    "torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);",
    "model->to(device);",
    "batch = spirals::to(batch, device);",
    "loss.backward();",
]


def lines(name):
    text = (EXAMPLES / name).read_text()
    # A statement that clang-format broke counts as one line.
    text = text.replace("device(\n      torch", "device(torch")
    return [line for line in text.splitlines() if line.strip()]


def mapped(line):
    import re
    for new, old in NEW_NAMES.items():
        line = re.sub(rf"\b{new}\b", old, line)
    return line


diff = [line for line in difflib.ndiff(
    lines("plain_spirals.cpp"), [mapped(x) for x in lines("accelerated_spirals.cpp")])
    if line[0] in "+-"]
print("\n".join(diff))
added = [line[2:].strip() for line in diff if line[0] == "+"]
removed = [line[2:].strip() for line in diff if line[0] == "-"]
assert added == ADDED, f"unexpected additions: {added}"
assert removed == REMOVED, f"unexpected removals: {removed}"
