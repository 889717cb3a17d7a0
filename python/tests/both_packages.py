# SPDX-License-Identifier: Apache-2.0
"""Runs a program of the folder `swap` with the original package and with this one, and reports
where the results differ.

One environment contains the libraries and the original; for our runs, the folder of this package
precedes them on the path."""

from __future__ import annotations

import functools
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import accelerate
import pytest
from original import ROOT
from ranks import RankServer

PROGRAMS = Path(__file__).parent / "swap"
# One start imports several libraries and runs every scenario of a file.
LIMIT_SECONDS = 1500
# Modules that are slow to import, imported once for all starts of a program.
MODULES = {
    "trainer.py": ["transformers.trainer"],
    "libraries.py": [
        "trl.trainer.sft_trainer",
        "sentence_transformers",
        "diffusers.models.unets.unet_2d",
    ],
    "big_models.py": [
        "transformers.models.llama.modeling_llama",
        "peft",
        "diffusers.models.unets.unet_2d",
    ],
    "tracking.py": ["accelerate"],
}


def python_with(what: str, release: str = "") -> Path:
    """The Python with the original and `libraries` or `trackers`; skips the test if there is
    none."""
    variable = f"ACCELERATE_{what.upper()}_PYTHON" + release.upper().replace("-", "_")
    python = Path(os.environ.get(variable, ROOT / f".venv-{what}{release}" / "bin" / "python"))
    if not python.exists():
        pytest.skip(f"[python_with] no {python}: set {variable}")
    return python


@dataclass
class Runs:
    """The starts of one program. Scenarios requested together share a start, because importing the
    libraries takes longer than running one."""

    program: str
    folder: Path
    python: Path
    num_processes: int
    names: list[str]
    path: list[str] = field(default_factory=list)
    answers: tuple[dict, dict] | None = None

    def compared(self, name: str) -> tuple[list, list]:
        """The results of every rank with the original, and with ours."""
        original, ours = self._answers(name)
        assert isinstance(original, list), f"the original fails:\n{original}"
        assert isinstance(ours, list), ours
        return original, ours

    def ours_alone(self, name: str, failure: str) -> list:
        """The results of every rank with ours, if the original fails with these words."""
        original, ours = self._answers(name)
        assert isinstance(original, str) and failure in original, original
        assert isinstance(ours, list), ours
        return ours

    def ours(self, name: str) -> list:
        """The results of every rank with ours, without running the original."""
        answer = self._run(True)[name]
        assert isinstance(answer, list), answer
        return answer

    def _answers(self, name: str) -> tuple[list | str, list | str]:
        if self.answers is None:
            with ThreadPoolExecutor(2) as pool:
                self.answers = tuple(pool.map(self._run, [False, True]))
        original, ours = (side[name] for side in self.answers)
        return original, ours

    def _run(self, is_ours: bool) -> dict[str, list | str]:
        """By scenario: the result of each rank, or its failure."""
        folder = self.folder / ("ours" if is_ours else "original")
        server = _server(self.program, self.python, is_ours, tuple(self.path))
        # Without it the original does not connect processes that have no GPU.
        variables = {"ACCELERATE_USE_CPU": "true"} if self.num_processes > 1 else {}
        found = {}
        while names := [name for name in self.names if name not in found]:
            folder.mkdir(parents=True, exist_ok=True)
            _, output = server.start(
                PROGRAMS / self.program,
                folder,
                str(folder),
                *names,
                num_ranks=self.num_processes,
                seconds=LIMIT_SECONDS,
                **variables,
            )
            for name in names:
                found[name] = self._answer(folder, name)
                if isinstance(found[name], str):
                    found[name] += output[-6000:]
                    # Other scenarios of this start never ran, or continued after this failure.
                    if self.num_processes > 1:
                        break
        return found

    def _answer(self, folder: Path, name: str) -> list | str:
        files = [folder / f"{name}.{rank}" for rank in range(self.num_processes)]
        answers = [json.loads(file.read_text()) for file in files if file.exists()]
        for answer in answers:
            if "failed" in answer:
                return answer["failed"]
        if len(answers) < len(files):
            return f"{name}: {len(answers)} of {len(files)} processes answered\n"
        return [answer["is"] for answer in answers]


def variables_of(python: Path, is_ours: bool, path: tuple[str, ...] = ()) -> dict[str, str]:
    """The variables that make a program find this package, or the original."""
    package = Path(accelerate.__file__).parents[1] if is_ours else python.parents[1]
    return {
        "PYTHONPATH": os.pathsep.join((str(package),) * is_ours + path),
        "SWAP_PACKAGE": str(package),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


@functools.cache
def _server(program: str, python: Path, is_ours: bool, path: tuple[str, ...] = ()) -> RankServer:
    return RankServer(str(python), MODULES[program], **variables_of(python, is_ours, path))


def ours_with_libraries(program: str) -> RankServer:
    """Forks ranks of a script that needs the imports of this program."""
    return _server(program, python_with("libraries"), True)


def chosen_scenarios(request: pytest.FixtureRequest) -> list[str]:
    """The scenarios that the selected tests of a module need."""
    items = [item for item in request.session.items if item.module is request.module]
    params = [item.callspec.params for item in items if hasattr(item, "callspec")]
    return list(dict.fromkeys(chosen["scenario"] for chosen in params if "scenario" in chosen))


def differences(original, ours, place: str = "") -> list[str]:
    """Where two results differ in any bit."""
    if isinstance(original, dict) and isinstance(ours, dict):
        found = []
        for name in sorted(original.keys() | ours.keys()):
            inside = f"{place}.{name}"
            if name not in original or name not in ours:
                found.append(f"{inside}: only {'ours' if name in ours else 'the original'}")
            else:
                found += differences(original[name], ours[name], inside)
        return found
    if isinstance(original, list) and isinstance(ours, list) and len(original) == len(ours):
        return [
            line
            for number, pair in enumerate(zip(original, ours))
            for line in differences(*pair, f"{place}[{number}]")
        ]
    return [] if original == ours else [f"{place}: original {original}, ours {ours}"]
