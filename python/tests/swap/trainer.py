# SPDX-License-Identifier: Apache-2.0
"""Typical uses of transformers' Trainer; the same file runs with either package."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch.utils.data import Dataset, IterableDataset, SubsetRandomSampler

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import parts  # noqa: E402
from parts import scenario  # noqa: E402
from transformers import (  # noqa: E402
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Rows(Dataset):
    """Rows of varying length, labelled by a rule."""

    def __init__(self, size: int, first: int = 0, length: int | None = None):
        tokenizer = parts.tokenizer()
        self.rows = []
        for number in range(first, first + size):
            ids = tokenizer(parts.sentence(number, length))["input_ids"]
            self.rows.append({"input_ids": ids, "labels": sum(ids) % 3})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return dict(self.rows[index])


class Stream(IterableDataset):
    """Rows of unknown number; of one length, because one process distributes them."""

    def __init__(self, size: int, first: int = 0):
        self.rows = Rows(size, first, length=6).rows

    def __iter__(self):
        return iter(map(dict, self.rows))


def pad(rows):
    from transformers import DataCollatorWithPadding

    return DataCollatorWithPadding(parts.tokenizer())(rows)


def metrics(prediction) -> dict:
    labels = torch.tensor(prediction.label_ids)
    chosen = torch.tensor(prediction.predictions).argmax(-1)
    return {
        "accuracy": (chosen == labels).double().mean().item(),
        "rows": len(labels),
        "labels": "".join(map(str, labels.tolist())),
    }


def arguments(folder: Path, *, kind=TrainingArguments, **settings) -> TrainingArguments:
    return kind(
        **{
            "output_dir": str(folder),
            "use_cpu": True,
            "report_to": "none",
            "disable_tqdm": True,
            "per_device_train_batch_size": 4,
            "per_device_eval_batch_size": 4,
            "num_train_epochs": 2,
            "learning_rate": 1e-2,
            "warmup_steps": 2,
            "logging_steps": 1,
            "save_strategy": "no",
            "seed": parts.SEED,
            **settings,
        }
    )


def trainer(
    folder: Path,
    *,
    kind=Trainer,
    model=None,
    train=None,
    evaluate=None,
    callbacks=(),
    collate=pad,
    **settings,
):
    return kind(
        model=parts.classifier() if model is None else model,
        args=arguments(folder, **settings),
        train_dataset=Rows(22) if train is None else train,
        eval_dataset=Rows(11, first=50) if evaluate is None else evaluate,
        data_collator=collate,
        processing_class=parts.tokenizer(),
        compute_metrics=metrics,
        callbacks=list(callbacks),
    )


def report(made, **more) -> dict:
    return {
        "history": parts.history(made),
        "steps": made.state.global_step,
        "weights": parts.digest(made.model),
        **more,
    }


@scenario
def plain(folder: Path) -> dict:
    """Trains, evaluates and saves during training, and resumes from the checkpoint in the
    middle."""
    settings = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "save_total_limit": 10,
    }
    first = trainer(folder, **settings)
    first.train()
    whole = report(first, predicted=predict(first))
    second = trainer(folder, **settings)
    second.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    files = sorted(path.name for path in (folder / "checkpoint-2").iterdir())
    return {"whole": whole, "resumed": report(second), "files": files}


def predict(made, rows=None) -> dict:
    output = made.predict(Rows(11, first=50) if rows is None else rows)
    return {
        "rows": len(output.predictions),
        "logits": parts.digest_of(torch.tensor(output.predictions)),
        "labels": output.label_ids.tolist(),
        "metrics": parts.untimed(output.metrics),
    }


def early(folder: Path, **settings) -> dict:
    """Training after an evaluation, and without one: there must be no difference."""
    made = trainer(folder, eval_strategy="epoch", **settings)
    before = parts.untimed(made.evaluate())
    made.state.log_history.clear()
    set_seed(parts.SEED)
    made.train()
    other = trainer(folder, eval_strategy="epoch", **settings)
    set_seed(parts.SEED)
    other.train()
    return {"before": before, "trained": report(made), "without": report(other)}


@scenario
def evaluate_first(folder: Path) -> dict:
    return early(folder)


@scenario
def evaluate_first_bf16(folder: Path) -> dict:
    return early(folder, bf16=True)


@scenario
def bf16(folder: Path) -> dict:
    made = trainer(folder, bf16=True, eval_strategy="steps", eval_steps=2)
    made.train()
    kinds = {str(parameter.dtype) for parameter in made.model.parameters()}
    return report(made, kinds=sorted(kinds), predicted=predict(made))


@scenario
def bf16_full_evaluation(folder: Path) -> dict:
    made = trainer(folder, bf16_full_eval=True)
    return {"before": parts.untimed(made.evaluate()), "predicted": predict(made)}


@scenario
def resumed_bf16(folder: Path) -> dict:
    settings = {"bf16": True, "save_strategy": "epoch", "eval_strategy": "epoch"}
    first = trainer(folder, **settings)
    first.train()
    second = trainer(folder, **settings)
    last = sorted(path.name for path in folder.glob("checkpoint-*"))
    second.train(resume_from_checkpoint=str(folder / last[0]))
    return {"whole": report(first), "resumed": report(second)}


@scenario
def resumed_fp16(folder: Path) -> dict:
    """On a GPU. The result must not depend on the order in which threads end."""
    settings = {
        "fp16": True,
        "use_cpu": False,
        "full_determinism": True,
        "max_steps": 10,
        "save_strategy": "steps",
        "save_steps": 5,
    }
    first = trainer(folder, **settings)
    first.train()
    whole = report(first, scale=first.accelerator.scaler.get_scale())
    second = trainer(folder, **settings)
    second.train(resume_from_checkpoint=str(folder / "checkpoint-5"))
    resumed = report(second, scale=second.accelerator.scaler.get_scale())
    files = sorted(path.name for path in (folder / "checkpoint-5").iterdir())
    return {"whole": whole, "resumed": resumed, "files": files, "device": second.args.device.type}


@scenario
def twice(folder: Path) -> dict:
    made = trainer(folder, eval_strategy="epoch")
    made.train()
    first = report(made)
    made.train()
    return {"first": first, "second": report(made)}


@scenario
def accumulation(folder: Path) -> dict:
    """Eleven batches of two rows, four per update: the last one has three."""
    made = trainer(
        folder, gradient_accumulation_steps=4, per_device_train_batch_size=2, max_grad_norm=0.5
    )
    made.train()
    return report(made)


@scenario
def accumulated_tokens(folder: Path) -> dict:
    """A loss per token, whose number differs between micro-batches and ranks."""
    from transformers import DataCollatorForLanguageModeling

    tokenizer = parts.tokenizer()
    tokenizer.mask_token = "[UNK]"
    rows = [{"input_ids": row["input_ids"]} for row in Rows(22).rows]
    made = Trainer(
        model=parts.causal_model(),
        args=arguments(
            folder,
            gradient_accumulation_steps=2,
            per_device_train_batch_size=2,
            eval_strategy="epoch",
            lr_scheduler_type="cosine",
        ),
        train_dataset=rows,
        eval_dataset=rows[:7],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
    )
    made.train()
    return report(made)


@scenario
def group_by_length(folder: Path) -> dict:
    # Renamed in transformers 5.
    if "group_by_length" in TrainingArguments.__dataclass_fields__:
        settings = {"group_by_length": True}
    else:
        settings = {"train_sampling_strategy": "group_by_length"}
    seen = []

    def collate(rows):
        seen.append([numbered.rows.index(row) for row in rows])
        return pad(rows)

    numbered = Rows(22)
    made = trainer(folder, train=numbered, collate=collate, num_train_epochs=3, **settings)
    made.train()
    return report(made, seen=seen)


@scenario
def workers(folder: Path) -> dict:
    made = trainer(
        folder,
        dataloader_num_workers=2,
        dataloader_persistent_workers=True,
        eval_strategy="epoch",
        dataloader_drop_last=True,
    )
    made.train()
    return report(made, predicted=predict(made))


@scenario
def stream(folder: Path) -> dict:
    made = trainer(folder, train=Stream(22), max_steps=6, eval_strategy="steps", eval_steps=3)
    made.train()
    return report(made)


@scenario
def streamed_evaluation(folder: Path) -> dict:
    """Each of eleven rows is counted once."""
    made = trainer(folder, evaluate=Stream(11, first=50))
    before, predicted = parts.untimed(made.evaluate()), predict(made, Stream(11, 50))
    return {"before": before, "metrics": predicted.pop("metrics"), "predicted": predicted}


class Sampled(Trainer):
    """Evaluates eleven of thirteen rows, with a custom sampler."""

    def _get_eval_sampler(self, eval_dataset):
        return SubsetRandomSampler(range(11), torch.Generator().manual_seed(1))


@scenario
def sampled_evaluation(folder: Path) -> dict:
    made = trainer(folder, kind=Sampled, evaluate=Rows(13, first=50))
    labels = parts.untimed(made.evaluate())["eval_labels"]
    return {"evaluated": sorted(labels), "predicted": predict(made, Rows(13, first=50))["rows"]}


@scenario
def resumed_stream(folder: Path) -> dict:
    settings = {"train": Stream(22), "max_steps": 6, "save_strategy": "steps", "save_steps": 4}
    first = trainer(folder, **settings)
    first.train()
    second = trainer(folder, **settings)
    second.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    return {"whole": report(first), "resumed": report(second)}


@scenario
def early_stopping(folder: Path) -> dict:
    made = trainer(
        folder,
        callbacks=[EarlyStoppingCallback(1)],
        num_train_epochs=8,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        greater_is_better=False,
        learning_rate=0.2,
    )
    made.train()
    best = Path(made.state.best_model_checkpoint).name
    after = parts.untimed(made.evaluate())
    return report(made, best=best, metric=made.state.best_metric, after=after)


class TooMuch(Trainer):
    """Runs out of memory with more than two rows at once."""

    tried = ()

    def training_step(self, model, inputs, *rest):
        rows = len(inputs["input_ids"])
        if not self.tried or self.tried[-1] != rows:
            self.tried = (*self.tried, rows)
        if rows > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate a row too many.")
        return super().training_step(model, inputs, *rest)


@scenario
def auto_find_batch_size(folder: Path) -> dict:
    made = trainer(
        folder,
        kind=TooMuch,
        auto_find_batch_size=True,
        per_device_train_batch_size=8,
        train=Rows(16),
        max_steps=4,
    )
    made.train()
    return report(made, tried=list(made.tried))


@scenario
def compiled(folder: Path) -> dict:
    made = trainer(
        folder,
        torch_compile=True,
        max_steps=3,
        train=Rows(24, length=6),
        evaluate=Rows(8, first=50, length=6),
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=3,
    )
    made.train()
    files = sorted(path.name for path in (folder / "checkpoint-3").iterdir())
    again = type(made.model).from_pretrained(folder / "checkpoint-3")
    return report(made, files=files, saved=parts.digest(again))


@scenario
def checkpointed_activations(folder: Path) -> dict:
    made = trainer(folder, gradient_checkpointing=True, eval_strategy="epoch")
    made.train()
    return report(made)


@scenario
def clipped_adafactor(folder: Path) -> dict:
    """Another optimizer and schedule, and label smoothing."""
    made = trainer(
        folder,
        optim="adafactor",
        lr_scheduler_type="constant_with_warmup",
        label_smoothing_factor=0.1,
        max_grad_norm=0.01,
    )
    made.train()
    return report(made)


@scenario
def sequences(folder: Path) -> dict:
    """Seq2SeqTrainer, which generates to evaluate."""
    from transformers import (
        BartConfig,
        BartForConditionalGeneration,
        DataCollatorForSeq2Seq,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
    )

    tokenizer = parts.tokenizer()
    set_seed(parts.SEED)
    model = BartForConditionalGeneration(
        BartConfig(
            vocab_size=48,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=4,
            decoder_start_token_id=4,
            forced_eos_token_id=None,
        )
    )
    rows = [
        {"input_ids": row["input_ids"], "labels": [*row["input_ids"][::-1][:6], 4]}
        for row in Rows(30).rows
    ]

    def count(prediction):
        tokens = torch.tensor(prediction.predictions)
        return {"rows": len(tokens), "tokens": parts.digest_of(tokens)}

    made = Seq2SeqTrainer(
        model=model,
        args=arguments(
            folder,
            kind=Seq2SeqTrainingArguments,
            num_train_epochs=1,
            eval_strategy="steps",
            eval_steps=2,
            predict_with_generate=True,
            generation_max_length=8,
            generation_num_beams=2,
        ),
        train_dataset=rows[:22],
        eval_dataset=rows[19:],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=count,
    )
    made.train()
    output = made.predict(rows[19:])
    return report(made, predictions=output.predictions.tolist())


@scenario
def beside_deepspeed(folder: Path) -> dict:
    """With a package `deepspeed` on the path, transformers needs classes to derive from."""
    from transformers.integrations import is_deepspeed_available
    from transformers.integrations.deepspeed import HfDeepSpeedConfig, HfTrainerDeepSpeedConfig

    assert is_deepspeed_available()
    config = HfDeepSpeedConfig({"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}})
    made = trainer(folder, max_steps=2)
    made.train()
    return report(
        made,
        bases=[kind.__name__ for kind in HfTrainerDeepSpeedConfig.__mro__],
        config=[
            config.is_zero3(),
            config.is_zero2(),
            config.is_offload(),
            config.get_value("bf16.enabled"),
            config.is_true("bf16.enabled"),
            config.get_value("nothing", 5),
        ],
    )


@scenario
def device_maps(folder: Path) -> dict:
    """A model that fits on one device is loaded there, whatever map is requested."""
    from transformers import LlamaForCausalLM

    made = parts.made_once(folder / "model", parts.causal_model().save_pretrained)
    tokens = torch.arange(5, 12).unsqueeze(0)
    found = {}
    for name in ("auto", "balanced", "balanced_low_0", "sequential", "cpu"):
        for memory in (None, {"cpu": "1GB"}, {"cpu": 0.9e9}):
            given = None if memory is None else dict(memory)
            model = LlamaForCausalLM.from_pretrained(made, device_map=name, max_memory=given)
            with torch.no_grad():
                logits = model(tokens).logits
            found[f"{name} {memory}"] = [parts.digest_of(logits), given, str(model.device)]
    return found


def _configured(stage: int, **sections) -> dict:
    return {
        "zero_optimization": {"stage": stage},
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        **sections,
    }


def _train_configured(folder: Path, checkpoint: Path | None = None, **settings) -> dict:
    """Trains like a separate program: returns history, and the saved weights."""
    from accelerate.state import AcceleratorState, GradientState
    from safetensors.torch import load_file

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "false"
    made = trainer(
        folder,
        gradient_accumulation_steps=2,
        save_strategy="steps",
        save_steps=2,
        max_grad_norm=0.05,
        eval_strategy="steps",
        eval_steps=2,
        **settings,
    )
    made.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    made.save_model(str(folder / "saved"))
    made.accelerator.wait_for_everyone()
    return {
        "history": parts.history(made),
        "steps": made.state.global_step,
        "weights": {
            name: tensor.flatten().tolist()
            for name, tensor in load_file(folder / "saved" / "model.safetensors").items()
        },
    }


def _train_all_configured(folder: Path, configurations: dict[str, dict]) -> dict:
    """Without DeepSpeed, and with each configuration, from the start and from the checkpoint in the
    middle."""
    found = {"plain": _train_configured(folder / "plain")}
    for name, configuration in configurations.items():
        work = folder / name
        found[name] = _train_configured(work, deepspeed=configuration)
        again = work / "again"
        found[f"{name} resumed"] = _train_configured(
            again, work / "checkpoint-2", deepspeed=configuration
        )
    return found


@scenario
def with_deepspeed(folder: Path) -> dict:
    optimizer = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}}
    scheduler = {"type": "WarmupLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": 2}}
    sections = _configured(2, optimizer=optimizer, scheduler=scheduler)
    return _train_all_configured(folder, {"stage3": _configured(3), "sections": sections})


@scenario
def with_deepspeed_stages(folder: Path) -> dict:
    stages = {f"stage{stage}": _configured(stage) for stage in range(3)}
    return _train_all_configured(folder, stages)


if __name__ == "__main__":
    parts.main()
