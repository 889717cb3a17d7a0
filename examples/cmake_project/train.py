# SPDX-License-Identifier: Apache-2.0
"""Trains a small classifier. Run it again to resume from the last checkpoint."""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed, tqdm
from accelerate.utils.imports import is_tqdm_available
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--folder", default="runs", help="for metrics and checkpoints")
args = parser.parse_args()


def make_data(num_points):
    """Points in a square. The label says whether a point is inside a circle."""
    points = torch.rand(num_points, 2) * 2 - 1
    return TensorDataset(points, (points.norm(dim=1) < 0.8).long())


# Writes metrics to runs/circle and the last two checkpoints to runs/checkpoints.
project = ProjectConfiguration(args.folder, automatic_checkpoint_naming=True, total_limit=2)
accelerator = Accelerator(log_with="jsonl", project_config=project)
accelerator.init_trackers("circle", config=vars(args))

set_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
train_loader = DataLoader(make_data(2048), batch_size=32, shuffle=True)
test_loader = DataLoader(make_data(512), batch_size=256)
model, optimizer, train_loader, test_loader = accelerator.prepare(
    model, optimizer, train_loader, test_loader
)


@torch.no_grad()
def accuracy():
    """The accuracy on the test data of all processes."""
    right = []
    for points, labels in test_loader:
        right.append(accelerator.gather_for_metrics(model(points).argmax(dim=1) == labels))
    return torch.cat(right).float().mean().item()


if os.path.isdir(os.path.join(args.folder, "checkpoints")):
    accelerator.load_state("latest", restore_loaders=True)
for epoch in range(train_loader.iteration, args.epochs):
    bar = tqdm(train_loader, desc=f"epoch {epoch}") if is_tqdm_available() else train_loader
    for points, labels in bar:
        loss = torch.nn.functional.cross_entropy(model(points), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    metrics = {"loss": loss.item(), "accuracy": accuracy()}
    accelerator.log(metrics, step=epoch)
    accelerator.print(f"epoch {epoch}: {metrics}")
    accelerator.save_state()
accelerator.end_training()
