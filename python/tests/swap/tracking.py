# SPDX-License-Identifier: Apache-2.0
"""Logs to the trackers that work without a network, and returns what their own packages read back.
Services that need one are replaced by modules that record calls."""

from __future__ import annotations

import json
import os
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.tracking import (
    LOGGER_TYPE_TO_CLASS,
    AimTracker,
    ClearMLTracker,
    CometMLTracker,
    GeneralTracker,
    SwanLabTracker,
    filter_trackers,
    get_available_trackers,
    on_main_process,
    register_tracker_class,
)
from accelerate.utils import LoggerType, ProfileKwargs, ProjectConfiguration
from parts import main, scenario

CONFIG = {"lr": 0.25, "steps": 3, "name": "sky", "is_fast": True}
VALUES = [{"loss": 1.5 / (step + 1), "lr": 0.25} for step in range(3)]


@scenario
def tensorboard(folder: Path) -> dict:
    """The loop of diffusers' scripts, stopped after two steps and resumed."""
    for first, last in ((0, 2), (2, 3)):
        project = ProjectConfiguration(project_dir=str(folder), logging_dir=str(folder / "logs"))
        accelerator = Accelerator(log_with="tensorboard", project_config=project)
        if accelerator.is_main_process:
            accelerator.init_trackers("text2image", config=dict(CONFIG))
        for step in range(first, last):
            accelerator.log(VALUES[step], step=step)
            accelerator.log({"note": f"step {step}", "two": {"a": step, "b": 2.0}}, step=step)
            accelerator.log({"tensor": torch.tensor(float(step))}, step=step)
            for tracker in accelerator.trackers:
                assert tracker.name == "tensorboard"
                images = np.full((2, 4, 4, 3), 0.25 * step, np.float32)
                tracker.writer.add_images("validation", images, step, dataformats="NHWC")
                tracker.log_images({"more": images}, step, dataformats="NHWC")
        is_blank = type(accelerator.get_tracker("tensorboard")) is GeneralTracker
        writer = accelerator.get_tracker("tensorboard", unwrap=True)
        kind = type(writer).__module__ + "." + type(writer).__name__
        accelerator.wait_for_everyone()
    accelerator.end_training()
    return {"is_blank": is_blank, "writer": kind.replace("accelerate", ""), **read_events(folder)}


def read_events(folder: Path) -> dict:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict = {}
    for file in sorted(folder.rglob("events*")):
        events = EventAccumulator(str(file), size_guidance={"images": 0, "scalars": 0})
        events.Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, []).extend([e.step, e.value] for e in events.Scalars(tag))
        for tag in events.Tags()["images"]:
            found.setdefault(tag, []).extend(
                [e.step, e.width, e.height, len(e.encoded_image_string)] for e in events.Images(tag)
            )
        for tag in events.Tags()["tensors"]:
            found.setdefault(tag, []).extend(
                [e.step, e.tensor_proto.string_val[0].decode()] for e in events.Tensors(tag)
            )
        if "_hparams_/session_start_info" in events.summary_metadata:
            data = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
            found.setdefault("hparams", []).append(str(hparams_of(data)))
    found["yaml"] = [file.read_text() for file in sorted(folder.rglob("hparams.yml"))]
    return found


def hparams_of(data: bytes) -> dict:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    values = HParamsPluginData.FromString(data).session_start_info.hparams
    return {name: str(values[name]) for name in sorted(values)}


@scenario
def mlflow(folder: Path) -> dict:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    accelerator = Accelerator(log_with="mlflow")
    config = {**CONFIG, **{f"p{n}": n for n in range(120)}, "long": "x" * 10000}
    accelerator.init_trackers(
        "sky", config, init_kwargs={"mlflow": {"logging_dir": str(folder), "tags": {"a": "b"}}}
    )
    for step, values in enumerate(VALUES[:2]):
        accelerator.log({**values, "note": "no number"}, step=step)
    run_id = accelerator.get_tracker("mlflow", unwrap=True).info.run_id
    for tracker in accelerator.trackers:
        tracker.finish()
    # A run that is continued.
    accelerator = Accelerator(log_with="mlflow")
    accelerator.init_trackers("sky", init_kwargs={"mlflow": {"run_id": run_id}})
    accelerator.log(VALUES[2], step=2)
    (folder / "note.txt").write_text("sky")
    accelerator.get_tracker("mlflow").log_artifact(str(folder / "note.txt"))
    accelerator.end_training()
    client = mlflow.MlflowClient()
    run = client.get_run(run_id)
    return {
        "experiments": [found.name for found in client.search_experiments()],
        "params": run.data.params,
        "tag": run.data.tags["a"],
        "status": run.info.status,
        "metrics": {
            name: [[point.step, point.value] for point in client.get_metric_history(run_id, name)]
            for name in run.data.metrics
        },
        "artifacts": [found.path for found in client.list_artifacts(run_id)],
    }


@scenario
def wandb(folder: Path) -> dict:
    os.environ.update(WANDB_MODE="offline", WANDB_DIR=str(folder), WANDB_SILENT="true")
    accelerator = Accelerator(log_with="wandb")
    accelerator.init_trackers("sky", CONFIG, init_kwargs={"wandb": {"name": "first"}})
    for step, values in enumerate(VALUES):
        accelerator.log(values, step=step)
    tracker = accelerator.get_tracker("wandb")
    tracker.log_images({"shown": [np.zeros((4, 4, 3), np.uint8)]}, step=3)
    tracker.log_table("rows", columns=["a", "b"], data=[[1, 2]], step=3)
    run = accelerator.get_tracker("wandb", unwrap=True)
    found = {
        "config": dict(run.config),
        "loss": run.summary["loss"],
        "step": run.step,
        "project": run.project,
    }
    accelerator.end_training()
    files = sorted(folder.rglob("*"))
    found["files"] = [len([f for f in files if f.suffix == end]) for end in (".wandb", ".png")]
    return found


@scenario
def dvclive(folder: Path) -> dict:
    accelerator = Accelerator(log_with="dvclive")
    options = {"dir": str(folder / "live"), "save_dvc_exp": False, "dvcyaml": None}
    accelerator.init_trackers("sky", CONFIG, init_kwargs={"dvclive": options})
    for step, values in enumerate(VALUES):
        accelerator.log({**values, "none": None}, step=10 * step)
    accelerator.end_training()
    return {
        file.name: file.read_text()
        for file in sorted((folder / "live").rglob("*"))
        if file.suffix in (".json", ".yaml")
    } | {
        file.name: [line.split("\t")[-2:] for line in file.read_text().splitlines()]
        for file in sorted((folder / "live").rglob("*.tsv"))
    }


@scenario
def trackio(folder: Path) -> dict:
    os.environ["TRACKIO_DIR"] = str(folder)
    accelerator = Accelerator(log_with="trackio")
    accelerator.init_trackers("sky", CONFIG, init_kwargs={"trackio": {"name": "first"}})
    for step, values in enumerate(VALUES):
        accelerator.log(values, step=step)
    accelerator.end_training()
    from trackio.sqlite_storage import SQLiteStorage

    keep = ("loss", "lr", "step")
    config = SQLiteStorage.get_run_config("sky", "first") or {}
    logs = SQLiteStorage.get_logs("sky", "first")
    return {
        "logs": [{name: log[name] for name in keep} for log in logs],
        "config": {name: config[name] for name in CONFIG},
    }


class Remembers:
    """Replaces an object of a missing service: records calls."""

    def __init__(self, name: str, calls: list) -> None:
        self.__dict__.update(_name=name, _calls=calls)

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return Remembers(f"{self._name}.{name}", self._calls)

    def __setattr__(self, name: str, value) -> None:
        self._calls.append([f"{self._name}.{name} =", repr(value)])

    def __setitem__(self, name: str, value) -> None:
        self._calls.append([f"{self._name}[{name!r}] =", repr(value)])

    def __call__(self, *args, **kwargs):
        named = {name: repr(value) for name, value in sorted(kwargs.items())}
        self._calls.append([self._name, [repr(value) for value in args], named])
        if self._name == "clearml.Task.current_task":
            return None
        return Remembers(f"{self._name}()", self._calls)

    def __repr__(self) -> str:
        return self._name


@scenario
def remembered(folder: Path) -> dict:
    accelerator = Accelerator()
    image = np.zeros((2, 2, 3), np.uint8)
    values = {"train_loss": 0.5, "note": "sky", "two": {"a": 1, "b": 2}}
    calls: list = []
    for name, make in (
        ("comet_ml", lambda: CometMLTracker("sky", online=False)),
        ("aim", lambda: AimTracker("sky", str(folder.name), experiment="e")),
        ("clearml", lambda: ClearMLTracker("sky", tags=["t"])),
        ("swanlab", lambda: SwanLabTracker("sky", mode="local")),
    ):
        module = types.ModuleType(name)
        module.__getattr__ = lambda attribute, name=name: Remembers(f"{name}.{attribute}", calls)
        module.__version__ = "3.58.8"
        sys.modules[name] = module
        accelerator.trackers = [make()]
        accelerator.trackers[0].start()
        accelerator.trackers[0].store_init_configuration(CONFIG)
        accelerator.log(values, step=3)
        accelerator.log({"eval_loss": 1}, log_kwargs={name: {"more": 1}})
        tracker = accelerator.get_tracker(name)
        if name == "aim":
            tracker.log_images({"a": image, "b": (image, "c")}, 2, {"track": {"context": 1}})
        elif name != "comet_ml":
            tracker.log_images({"test_a": [image]}, step=2, more=1)
        if name == "clearml":
            tracker.log_table("eval_t", columns=["a"], data=[[1]], step=1)
            tracker.log_table("t", data=[["a"], [1]])
        calls.append(repr(accelerator.get_tracker(name, unwrap=True)))
        for tracker in accelerator.trackers:
            tracker.finish()
        del sys.modules[name]
    accelerator.trackers = []
    accelerator.end_training()
    return {"calls": calls}


class Own(GeneralTracker):
    name = "own"
    requires_logging_directory = False

    def __init__(self, *args, **kwargs) -> None:
        super().__init__()
        self.calls = [[list(args), kwargs]]

    @property
    def tracker(self) -> list:
        return self.calls

    @on_main_process
    def start(self) -> None:
        self.calls.append("start")

    @on_main_process
    def store_init_configuration(self, values: dict) -> None:
        self.calls.append(values)

    @on_main_process
    def log(self, values: dict, step: int | None = None, **kwargs) -> None:
        self.calls.append([values, step, kwargs])

    @on_main_process
    def finish(self) -> None:
        self.calls.append("finish")


class Lacking(GeneralTracker):
    name = "lacking"


def raised(function) -> str:
    try:
        function()
    except Exception as error:
        return type(error).__name__
    return "nothing"


@scenario
def rules(folder: Path) -> dict:
    given = Own()
    accelerator = Accelerator(log_with=[given, "tensorboard"], project_dir=str(folder))
    accelerator.init_trackers("first", CONFIG)
    accelerator.log({"loss": 1.0}, step=1, log_kwargs={"own": {"more": 2}})
    found = {
        "names": [tracker.name for tracker in accelerator.trackers],
        "own": accelerator.get_tracker("own", unwrap=True) is given.calls,
        "unknown": raised(lambda: accelerator.get_tracker("nobody")),
        "logging_dir": str(accelerator.logging_dir) == str(folder),
    }
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        register_tracker_class(Own)
        register_tracker_class(Own)
    found["warned"] = len(warned)
    accelerator = Accelerator(log_with="own")
    accelerator.init_trackers("second", init_kwargs={"own": {"a": 1}})
    accelerator.end_training()
    asked = ["tensorboard", LoggerType.TENSORBOARD, "own", "own", given, "aim"]
    return found | {
        "calls": given.calls,
        "registered": accelerator.trackers[0].calls,
        "filtered": [str(t) for t in filter_trackers(asked, "x") if t is not given],
        "none": filter_trackers(None),
        "all": [str(t) for t in filter_trackers(["all", given])[1:]],
        "available": [str(t) for t in get_available_trackers()],
        "classes": {
            name: kind.__name__ for name, kind in LOGGER_TYPE_TO_CLASS.items() if name != "jsonl"
        },
        "needs_dir": raised(lambda: filter_trackers("tensorboard")),
        "unsupported": raised(lambda: filter_trackers("nobody")),
        "lacking": raised(Lacking),
        "no_class": raised(lambda: register_tracker_class(given)),
        "no_directory": raised(lambda: register_tracker_class(Lacking)),
    }


@scenario
def profiles(folder: Path) -> dict:
    handler = ProfileKwargs(
        activities=["cpu"],
        schedule_option={"wait": 1, "warmup": 1, "active": 2, "repeat": 1},
        record_shapes=True,
        output_trace_dir=str(folder / "scheduled"),
    )
    accelerator = Accelerator(kwargs_handlers=[handler])
    weight = torch.ones(8, 8)
    with accelerator.profile() as scheduled:
        for _ in range(4):
            weight @ weight
            scheduled.step()
    with accelerator.profile(ProfileKwargs(output_trace_dir=str(folder / "given"))) as given:
        weight @ weight
    accelerator.wait_for_everyone()
    traces = sorted(folder.rglob("*.json"))
    events = [json.loads(file.read_text())["traceEvents"] for file in traces]
    counted = [sum(event.get("name") == "aten::mm" for event in trace) for trace in events]
    accelerator.end_training()
    return {
        "kinds": [type(scheduled).__name__, type(given).__name__],
        "files": [f"{file.parent.name}/{file.name}" for file in traces],
        "products": counted,
        "averages": sorted(e.key for e in given.key_averages() if e.key == "aten::mm"),
    }


if __name__ == "__main__":
    main()
