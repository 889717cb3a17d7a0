# SPDX-License-Identifier: Apache-2.0
"""Models of transformers, PEFT and diffusers whose weights are on disk; the same file runs with
either package."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import parts  # noqa: E402
from parts import scenario  # noqa: E402


def saved_model(folder: Path, **settings) -> Path:
    """A model in several files."""
    path = folder / "model"
    parts.causal_model(**settings).eval().save_pretrained(path, max_shard_size="6KB")
    return path


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.tensor([[2, 7, 9, 11, 5, 8], [2, 20, 21, 6, 7, 3]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def outputs_of(model) -> dict:
    model.eval()
    with torch.no_grad():
        logits = model(**inputs()).logits
        tokens = model.generate(**inputs(), max_new_tokens=12, do_sample=False)
    return {
        "logits": parts.digest_of(logits),
        "tokens": tokens.tolist(),
        "devices": {name: str(p.device) for name, p in model.named_parameters()},
        "map": getattr(model, "hf_device_map", None),
    }


def load(path: Path, **options):
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AutoModelForCausalLM.from_pretrained(path, **options)


@scenario
def device_maps(folder: Path) -> dict:
    path = saved_model(folder)
    found = {"plain": outputs_of(load(path))}
    disk = {
        "model.embed_tokens": "cpu",
        "model.layers.0": "cpu",
        "model.layers.1": "disk",
        "model.norm": "disk",
        "model.rotary_emb": "cpu",
        "lm_head": "disk",
    }
    cases = {
        "cpu": {"device_map": "cpu"},
        "auto": {"device_map": "auto"},
        "auto small": {"device_map": "auto", "max_memory": {"cpu": 12000}},
        "sequential": {"device_map": "sequential", "max_memory": {"cpu": 20000}},
        "parts": {"device_map": disk},
        "all": {"device_map": {"": "disk"}},
        "fp16": {"device_map": disk, "dtype": torch.bfloat16},
        "buffers": {"device_map": disk, "offload_buffers": True},
    }
    for name, options in cases.items():
        model = load(path, offload_folder=folder / f"offload {name}", **options)
        found[name] = outputs_of(model)
        if name != "fp16":
            assert found[name]["logits"] == found["plain"]["logits"]
            assert found[name]["tokens"] == found["plain"]["tokens"]
    return found


@scenario
def tied(folder: Path) -> dict:
    path = saved_model(folder, tie_word_embeddings=True)
    found = {}
    for name, device_map in {
        "all": {"": "disk"},
        "cpu and disk": {
            "model.embed_tokens": "cpu",
            "model.layers": "disk",
            "model.norm": "cpu",
            "model.rotary_emb": "cpu",
            "lm_head": "cpu",
        },
    }.items():
        model = load(path, device_map=device_map, offload_folder=folder / name)
        found[name] = outputs_of(model)
    return found


@scenario
def saved_again(folder: Path) -> dict:
    path = saved_model(folder)
    model = load(path, device_map={"": "disk"}, offload_folder=folder / "offload")
    model.save_pretrained(folder / "again")
    return {"weights": parts.digest(load(folder / "again")), "before": parts.digest(load(path))}


@scenario
def adapters(folder: Path) -> dict:
    """LoRA on a frozen base that is partly on disk; the same as on a base in memory. PEFT adapts
    only layers in memory."""
    from accelerate import Accelerator
    from peft import LoraConfig, get_peft_model

    path = saved_model(folder)
    disk = {
        "model.embed_tokens": "cpu",
        "model.norm": "disk",
        "model.rotary_emb": "cpu",
        "lm_head": "disk",
    }
    for number in range(2):
        disk |= {
            f"model.layers.{number}.{part}": "disk"
            for part in ("mlp", "input_layernorm", "post_attention_layernorm")
        }
        disk[f"model.layers.{number}.self_attn"] = "cpu"
    found = {}
    for name, options in {
        "memory": {},
        "disk": {"device_map": disk, "offload_folder": folder / "offload"},
    }.items():
        accelerator = Accelerator(cpu=True)
        torch.manual_seed(parts.SEED)
        model = load(path, **options)
        config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
        model = get_peft_model(model, config)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
        model, optimizer = accelerator.prepare(model, optimizer)
        losses = []
        model.train()
        for _ in range(4):
            torch.manual_seed(parts.SEED)
            loss = model(**inputs(), labels=inputs()["input_ids"]).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        adapter = {n: p for n, p in model.named_parameters() if p.requires_grad}
        found[name] = {"losses": losses, "adapter": parts.digest(adapter)}
    assert found["memory"] == found["disk"]
    return found


@scenario
def diffusion(folder: Path) -> dict:
    from accelerate import cpu_offload, cpu_offload_with_hook, disk_offload
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    def pipeline():
        torch.manual_seed(parts.SEED)
        unet = UNet2DModel(
            sample_size=8,
            in_channels=1,
            out_channels=1,
            layers_per_block=1,
            norm_num_groups=4,
            block_out_channels=(8, 8),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )
        pipe = DDPMPipeline(unet.eval(), DDPMScheduler(num_train_timesteps=10))
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def picture(pipe) -> str:
        images = pipe(
            generator=torch.Generator().manual_seed(1), num_inference_steps=2, output_type="np"
        ).images
        return parts.digest_of(torch.from_numpy(images))

    ways = {
        "enable_model_cpu_offload": lambda pipe: pipe.enable_model_cpu_offload(device="cpu"),
        "enable_sequential_cpu_offload": lambda p: p.enable_sequential_cpu_offload(device="cpu"),
        "cpu_offload": lambda pipe: cpu_offload(pipe.unet, "cpu"),
        "disk_offload": lambda pipe: disk_offload(pipe.unet, folder / "unet", "cpu"),
        "with hook": lambda pipe: cpu_offload_with_hook(pipe.unet, "cpu"),
    }
    found = {"plain": picture(pipeline())}
    for name, offload in ways.items():
        pipe = pipeline()
        offload(pipe)
        try:
            found[name] = [picture(pipe), type(pipe.unet._hf_hook).__name__]
        except TypeError as error:
            found[name] = f"failed: {error}"[:60]
    return found


if __name__ == "__main__":
    parts.main()
