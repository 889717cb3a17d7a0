# SPDX-License-Identifier: Apache-2.0
"""One existing variant of each kind is named only in the files that docs/adding.md lists for a new
one, so adding a variant touches no other source file."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("include", "src", "cli", "python/accelerate", "python/src")
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".pyi", ".txt"}

# Kind in docs/adding.md, what names the variant in code, and the files for it. The CMakeLists.txt of
# its folder also names each variant.
VARIANTS = [
    ("optimizer", r"\bLion(?:Options|State)?\b",
     {"src/training/optim/lion.cpp", "include/accelerate/optimizers.h"}),
    ("schedule", r"\bcosine_with_restarts\b",
     {"src/training/optim/named_schedules.cpp", "include/accelerate/schedulers.h"}),
    ("command", r"\badd_doctor_command\b",
     {"src/launcher/cli/doctor.cpp", "src/launcher/cli/commands.h"}),
    ("tracker", r"\bmake_csv_tracker\b",
     {"src/core/tracking/csv.cpp", "src/core/tracking/builtin.h",
      "src/core/tracking/trackers.cpp"}),
    ("starter", r"\bdetect_slurm\b",
     {"src/core/process/slurm.cpp", "src/core/process/detect.cpp",
      "src/core/process/cluster_environment.h"}),
    ("model", r"\bdistilbert_architecture\b",
     {"src/models/distilbert.cpp", "src/models/architecture.h"}),
    ("model family", r'"gpt_neox"', {"src/core/sizing/model_families.cpp"}),
    ("option of launch", r"\blog_max_mb\b|\bkLogMaxMb\b",
     {"src/core/config/launch_config.h", "src/core/config/fields.cpp", "src/core/base/variables.h",
      "src/launcher/launch/plan/plan.cpp"}),
    ("training option", r"\bgrowth_interval\b",
     {"include/accelerate/training/grad_scaler.h", "src/training/precision/grad_scaler.cpp",
      "python/src/bind_run.cpp", "python/accelerate/_C.pyi",
      "python/accelerate/utils/dataclasses.py", "python/accelerate/_run/options.py"}),
    # The original has this tracker, too. A new one is not in the list of its names.
    ("tracker in Python", r"\bTrackioTracker\b|\bis_trackio_available\b|\bTRACKIO\b",
     {"python/accelerate/tracking.py", "python/accelerate/utils/imports.py",
      "python/accelerate/utils/dataclasses.py", "python/accelerate/_original_names.txt"}),
    ("backend", r"\bgloo_backend\b",
     {"src/training/comm/backends/gloo.cpp", "src/training/comm/backends/backends.h",
      "src/training/comm/backends/table.cpp"}),
    ("layer of engines", r"\bmake_ddp_layer\b",
     {"src/training/parallel/ddp.cpp", "src/training/parallel/layer_table.h",
      "src/training/parallel/layer_table.cpp"}),
]


def files_naming(pattern):
    found = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in SUFFIXES and re.search(pattern, path.read_text()):
                found.add(path.relative_to(ROOT).as_posix())
    return found


document = (ROOT / "docs/adding.md").read_text()
wrong = []
for kind, pattern, expected in VARIANTS:
    if f"| [{kind}](#" not in document:
        wrong.append(f"docs/adding.md has no row for a new {kind}")
    found = files_naming(pattern)
    for name in sorted(expected - found):
        wrong.append(f"{name} does not name the {kind} of this test ({pattern})")
    for name in sorted(found - expected):
        wrong.append(f"{name} names one {kind} ({pattern}); use its table instead")
if wrong:
    sys.exit("\n".join(wrong))
print(f"{len(VARIANTS)} kinds of variants are named in their own files and tables only")
