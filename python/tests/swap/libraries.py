# SPDX-License-Identifier: Apache-2.0
"""Typical uses of trl, peft, sentence-transformers and diffusers; the same file runs with either
package. Each library is imported by the scenario that needs it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    TRL_EXPERIMENTAL_SILENCE="1",
)

import parts  # noqa: E402
from parts import scenario  # noqa: E402


def settings(folder: Path, **more) -> dict:
    """The arguments of every TrainingArguments here."""
    return {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "disable_tqdm": True,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "max_steps": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "seed": parts.SEED,
        **more,
    }


def report(trainer, **more) -> dict:
    return {
        "history": parts.history(trainer),
        "weights": parts.digest(trainer.model),
        **more,
    }


def rows(make, size: int = 14):
    from datasets import Dataset

    return Dataset.from_list([make(number) for number in range(size)])


def lora(**more):
    from peft import LoraConfig

    return LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], **more
    )


def conversation(number: int) -> dict:
    return {
        "messages": [
            {"role": "user", "content": parts.sentence(number)},
            {"role": "assistant", "content": parts.sentence(number + 3)},
        ]
    }


def preference(number: int) -> dict:
    return {
        "prompt": parts.sentence(number, 3),
        "chosen": " " + parts.sentence(number + 1, 4),
        "rejected": " " + parts.sentence(number + 9, 5),
    }


@scenario
def sft(folder: Path) -> dict:
    from trl import SFTConfig, SFTTrainer

    trainer = SFTTrainer(
        model=parts.causal_model(),
        args=SFTConfig(
            **settings(
                folder,
                max_length=24,
                eval_strategy="steps",
                eval_steps=2,
                gradient_accumulation_steps=2,
                save_strategy="steps",
                save_steps=2,
            )
        ),
        train_dataset=rows(conversation),
        eval_dataset=rows(conversation, 8),
        processing_class=parts.tokenizer(),
    )
    trainer.train()
    return report(trainer)


@scenario
def sft_lora(folder: Path) -> dict:
    """bf16, activation checkpointing, an adapter that is saved and loaded again."""
    from peft import PeftModel
    from trl import SFTConfig, SFTTrainer

    trainer = SFTTrainer(
        model=parts.causal_model(),
        args=SFTConfig(
            **settings(
                folder,
                max_length=24,
                bf16=True,
                save_strategy="steps",
                save_steps=4,
                gradient_checkpointing=True,
            )
        ),
        train_dataset=rows(conversation),
        processing_class=parts.tokenizer(),
        peft_config=lora(task_type="CAUSAL_LM"),
    )
    trainer.train()
    again = PeftModel.from_pretrained(parts.causal_model(), folder / "checkpoint-4")
    return report(trainer, saved=parts.digest(again))


@scenario
def dpo(folder: Path) -> dict:
    """The policy without its adapter is the reference."""
    from trl import DPOConfig, DPOTrainer

    trainer = DPOTrainer(
        model=parts.causal_model(),
        args=DPOConfig(**settings(folder, max_length=24, eval_strategy="steps", eval_steps=2)),
        train_dataset=rows(preference),
        eval_dataset=rows(preference, 8),
        processing_class=parts.tokenizer(),
        peft_config=lora(task_type="CAUSAL_LM"),
    )
    trainer.train()
    return report(trainer)


@scenario
def dpo_reference(folder: Path) -> dict:
    """A separate reference model, in bf16 like the policy."""
    from trl import DPOConfig, DPOTrainer

    trainer = DPOTrainer(
        model=parts.causal_model(),
        ref_model=parts.causal_model(),
        args=DPOConfig(**settings(folder, max_length=24, bf16=True)),
        train_dataset=rows(preference),
        processing_class=parts.tokenizer(),
    )
    trainer.train()
    return report(trainer)


@scenario
def reward(folder: Path) -> dict:
    from transformers import LlamaForSequenceClassification, set_seed
    from trl import RewardConfig, RewardTrainer

    config = parts.causal_model().config
    config.num_labels = 1
    set_seed(parts.SEED)
    trainer = RewardTrainer(
        model=LlamaForSequenceClassification(config),
        args=RewardConfig(**settings(folder, max_length=24, eval_strategy="steps", eval_steps=2)),
        train_dataset=rows(preference),
        eval_dataset=rows(preference, 8),
        processing_class=parts.tokenizer(),
    )
    trainer.train()
    return report(trainer)


@scenario
def grpo(folder: Path) -> dict:
    from transformers import LlamaForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    # The reference is loaded from the folder of the model.
    path = parts.made_once(folder / "policy", parts.causal_model().save_pretrained)

    def prefers_few_words(completions, **_):
        return [-float(len(set(text.split()))) for text in completions]

    trainer = GRPOTrainer(
        model=LlamaForCausalLM.from_pretrained(path),
        reward_funcs=prefers_few_words,
        args=GRPOConfig(
            **settings(folder, num_generations=2, max_completion_length=6, beta=0.1, max_steps=3)
        ),
        train_dataset=rows(lambda number: {"prompt": parts.sentence(number, 4)}),
        processing_class=parts.tokenizer(),
    )
    trainer.train()
    return report(trainer)


def classified(number: int) -> dict:
    ids = parts.tokenizer()(parts.sentence(number))["input_ids"]
    return {"input_ids": ids, "labels": sum(ids) % 3}


def adapted():
    from peft import LoraConfig, get_peft_model

    return get_peft_model(
        parts.classifier(),
        LoraConfig(r=4, lora_dropout=0.1, target_modules=["query", "value"], task_type="SEQ_CLS"),
    )


@scenario
def lora_trainer(folder: Path) -> dict:
    """LoRA in transformers' Trainer; the adapter is saved, loaded and trained further."""
    from peft import PeftModel
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

    def make():
        return Trainer(
            model=adapted(),
            args=TrainingArguments(
                **settings(
                    folder, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2
                )
            ),
            train_dataset=rows(classified),
            eval_dataset=rows(classified, 5),
            data_collator=DataCollatorWithPadding(parts.tokenizer()),
        )

    first = make()
    first.train()
    second = make()
    second.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    again = PeftModel.from_pretrained(parts.classifier(), folder / "checkpoint-4")
    return {"whole": report(first), "resumed": report(second), "saved": parts.digest(again)}


@scenario
def lora_loop(folder: Path) -> dict:
    """LoRA in a custom loop, as in peft's examples."""
    from accelerate import Accelerator
    from peft import PeftModel
    from torch.utils.data import DataLoader
    from transformers import DataCollatorWithPadding, get_linear_schedule_with_warmup, set_seed

    set_seed(parts.SEED)
    accelerator = Accelerator(cpu=True)
    model = adapted()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with accelerator.main_process_first():
        data = rows(classified)
    loader = DataLoader(
        data, batch_size=2, shuffle=True, collate_fn=DataCollatorWithPadding(parts.tokenizer())
    )
    held = DataLoader(
        rows(classified, 5), batch_size=2, collate_fn=DataCollatorWithPadding(parts.tokenizer())
    )
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 2 * len(loader))
    model, loader, held, optimizer, schedule = accelerator.prepare(
        model, loader, held, optimizer, schedule
    )
    losses, rates, chosen = [], [], []
    for _ in range(2):
        model.train()
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach().reshape(1)).tolist())
            rates.append(schedule.get_last_lr())
        model.eval()
        for batch in held:
            with torch.no_grad():
                logits = model(**batch).logits
            gathered = accelerator.gather_for_metrics((logits.argmax(-1), batch["labels"]))
            chosen.append([tensor.tolist() for tensor in gathered])
    accelerator.wait_for_everyone()
    kept = accelerator.unwrap_model(model)
    kept.save_pretrained(
        folder / "adapter",
        is_main_process=accelerator.is_main_process,
        state_dict=accelerator.get_state_dict(model),
    )
    accelerator.wait_for_everyone()
    again = PeftModel.from_pretrained(parts.classifier(), folder / "adapter")
    return {
        "losses": losses,
        "rates": rates,
        "chosen": chosen,
        "weights": parts.digest(kept),
        "saved": parts.digest(again),
    }


def sentence_model(folder: Path):
    """A random model folder in `SentenceTransformer`'s format."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, set_seed

    def write(path):
        set_seed(parts.SEED)
        BertModel(BertConfig(**parts.encoder_settings())).save_pretrained(path)
        parts.tokenizer().save_pretrained(path)

    encoder = Transformer(str(parts.made_once(folder / "encoder", write)))
    return SentenceTransformer(modules=[encoder, Pooling(16)], device="cpu")


def pairs(number: int) -> dict:
    return {"anchor": parts.sentence(number, 5), "positive": parts.sentence(number + 1, 6)}


def sentence_trainer(folder: Path, num_evaluated: int | None = None, gathers: bool = False, **more):
    """With a cached loss, which runs the model on chunks of two rows twice."""
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import (
        CachedMultipleNegativesRankingLoss,
    )

    class Noted(SentenceTransformerTrainer):
        """Keeps the losses of the evaluated batches."""

        def prediction_step(self, *args, **kwargs):
            output = super().prediction_step(*args, **kwargs)
            self.evaluated = [*getattr(self, "evaluated", []), output[0].item()]
            return output

    model = sentence_model(folder)
    return Noted(
        model=model,
        args=SentenceTransformerTrainingArguments(
            **settings(folder, per_device_train_batch_size=6, **more)
        ),
        train_dataset=rows(pairs, 40),
        eval_dataset=None if num_evaluated is None else rows(pairs, num_evaluated),
        loss=CachedMultipleNegativesRankingLoss(
            model, mini_batch_size=2, gather_across_devices=gathers
        ),
    )


@scenario
def sentences(folder: Path) -> dict:
    trainer = sentence_trainer(
        folder, 8, gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=2
    )
    trainer.train()
    return report(trainer, norms=parts.norms(trainer.model))


@scenario
def gathered_sentences(folder: Path) -> dict:
    """Negatives of all processes, batches without duplicates, bf16."""
    trainer = sentence_trainer(folder, gathers=True, bf16=True, batch_sampler="no_duplicates")
    trainer.train()
    return report(trainer, norms=parts.norms(trainer.model))


@scenario
def evaluated_sentences(folder: Path) -> dict:
    """Nine rows in batches of two; on several processes the library drops the ninth."""
    trainer = sentence_trainer(folder, 9)
    return {"loss": trainer.evaluate()["eval_loss"], "batches": trainer.evaluated}


def small_unet(folder: Path):
    """Saved and loaded again: by default with weights without memory."""
    from diffusers import UNet2DModel
    from transformers import set_seed

    set_seed(parts.SEED)
    made = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
    )
    loaded = UNet2DModel.from_pretrained(parts.made_once(folder / "unet", made.save_pretrained))
    assert parts.digest(loaded) == parts.digest(made)
    assert all(parameter.device.type == "cpu" for parameter in loaded.parameters())
    return loaded


def train_unet(folder: Path, precision: str) -> tuple[object, dict]:
    """The loop of diffusers' script for unconditional images, with its hooks and checkpoints."""
    from accelerate import Accelerator, InitProcessGroupKwargs
    from accelerate.logging import get_logger
    from accelerate.state import AcceleratorState
    from accelerate.utils import ProjectConfiguration
    from datetime import timedelta
    from diffusers import DDPMScheduler, UNet2DModel
    from diffusers.optimization import get_scheduler
    from diffusers.training_utils import EMAModel
    from transformers import set_seed

    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        mixed_precision=precision,
        project_config=ProjectConfiguration(project_dir=str(folder), logging_dir=str(folder)),
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=7200))],
    )
    model = small_unet(folder)
    set_seed(parts.SEED)
    average = EMAModel(
        model.parameters(),
        decay=0.9,
        use_ema_warmup=True,
        model_cls=UNet2DModel,
        model_config=model.config,
    )

    def save_model_hook(models, weights, output_dir):
        if accelerator.is_main_process:
            average.save_pretrained(os.path.join(output_dir, "unet_ema"))
            for model in models:
                model.save_pretrained(os.path.join(output_dir, "unet"))
                weights.pop()

    def load_model_hook(models, input_dir):
        loaded = EMAModel.from_pretrained(os.path.join(input_dir, "unet_ema"), UNet2DModel)
        average.load_state_dict(loaded.state_dict())
        for _ in range(len(models)):
            model = models.pop()
            read = UNet2DModel.from_pretrained(input_dir, subfolder="unet")
            model.register_to_config(**read.config)
            model.load_state_dict(read.state_dict())

    accelerator.register_save_state_pre_hook(save_model_hook)
    accelerator.register_load_state_pre_hook(load_model_hook)
    get_logger(__name__).info(accelerator.state, main_process_only=False)
    assert AcceleratorState().deepspeed_plugin is None

    generator = torch.Generator().manual_seed(3)
    images = torch.rand(16, 1, 8, 8, generator=generator)
    loader = torch.utils.data.DataLoader(images, batch_size=2, shuffle=True)
    noises = DDPMScheduler(num_train_timesteps=50)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    schedule = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=40)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    losses, rates = [], []

    def epoch():
        model.train()
        for clean in loader:
            noise = torch.randn(clean.shape)
            times = torch.randint(0, 50, (len(clean),)).long()
            with accelerator.accumulate(model):
                predicted = model(noises.add_noise(clean, noise, times), times).sample
                loss = torch.nn.functional.mse_loss(predicted.float(), noise.float())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                average.step(model.parameters())
            losses.append(accelerator.gather(loss.detach().repeat(2)).tolist())
            rates.append(schedule.get_last_lr()[0])
        accelerator.wait_for_everyone()

    epoch()
    # The scripts save only on the main process.
    if accelerator.is_main_process:
        accelerator.save_state(str(folder / "checkpoint-1"))
    accelerator.wait_for_everyone()
    whole = parts.digest(accelerator.unwrap_model(model))
    set_seed(parts.SEED)
    epoch()
    far = parts.digest(accelerator.unwrap_model(model))
    accelerator.load_state(str(folder / "checkpoint-1"))
    assert parts.digest(accelerator.unwrap_model(model)) == whole
    set_seed(parts.SEED)
    epoch()
    return accelerator, {
        "losses": losses,
        "rates": rates,
        "first": whole,
        "second": far,
        "again": parts.digest(accelerator.unwrap_model(model)),
        "average": parts.digest({str(i): value for i, value in enumerate(average.shadow_params)}),
    }


@scenario
def diffusion(folder: Path) -> dict:
    """Leaves the group at the end as scripts do, so nothing can follow if processes were
    connected."""
    accelerator, found = train_unet(folder, "no")
    accelerator.end_training()
    return found


@scenario
def diffusion_bf16(folder: Path) -> dict:
    return train_unet(folder, "bf16")[1]


if __name__ == "__main__":
    parts.main()
