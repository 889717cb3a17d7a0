# SPDX-License-Identifier: Apache-2.0
"""Transformers' side of loss_curve.py.

  loss_curve_peer.py make FOLDER SEED LAYERS       a GPT-2 with random weights and no dropout
  loss_curve_peer.py train FOLDER FILE STEPS BATCH TOKENS
                                                   prints the loss of each step in fp32
"""
import sys

sys.path.pop(0)  # This folder has a safetensors.py, which is not the package.
import torch
from transformers import GPT2Config, GPT2LMHeadModel, get_constant_schedule_with_warmup


def make(folder, seed, layers):
    torch.manual_seed(int(seed))
    GPT2LMHeadModel(GPT2Config(n_layer=int(layers), resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
                    ).save_pretrained(folder)


def train(folder, file, steps, batch, tokens):
    batch, tokens = int(batch), int(tokens)
    with open(file, "rb") as stream:
        text = torch.frombuffer(bytearray(stream.read()), dtype=torch.uint8).long()
    rows = text[:len(text) // tokens * tokens].view(-1, tokens)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = GPT2LMHeadModel.from_pretrained(folder).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = get_constant_schedule_with_warmup(optimizer, 50)
    losses = []
    for i in range(int(steps)):
        ids = rows[torch.arange(i * batch, (i + 1) * batch) % len(rows)].to(device)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    for loss in losses:
        print(f"{loss.item():.6f}")


{"make": make, "train": train}[sys.argv[1]](*sys.argv[2:])
