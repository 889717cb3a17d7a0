# SPDX-License-Identifier: Apache-2.0
"""A BERT-base-sized model with AdamW's moments is saved and loaded, beside Hugging Face Accelerate and
beside bare files of the same bytes (write and fdatasync). What the original has saved may still be in memory
only when it returns. Loading is measured with the files in the
page cache, and without where this user may drop it. Ours verifies every byte; the original does not.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import harness


class Side:
    def __init__(self, *command):
        self.process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, what, path):
        self.process.stdin.write(f"{what} {path}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def drop(folder):
    """Forgets what the page cache has of the folder."""
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def main():
    arguments = harness.arguments("checkpoints: save and load")
    ours = Side(arguments.bin / "checkpoint")
    peer = Side(sys.executable, pathlib.Path(__file__).with_name("checkpoint_peer.py"))
    with tempfile.TemporaryDirectory(dir=arguments.bin) as folder:
        folder = pathlib.Path(folder)

        def save(side, name):
            shutil.rmtree(folder / name, ignore_errors=True)
            return side("save", folder / name)

        def load_cold(side, name):
            drop(folder / name)
            return side("load", folder / name)

        def report(case, mine, theirs):
            harness.report(
                "checkpoint", case, *harness.alternate(mine, theirs, arguments.rounds), "s"
            )

        report("save_beside_bare_files", lambda: save(ours, "ours"),
               lambda: ours("raw", folder / "raw"))  # fmt: skip
        report("save_synced_beside_accelerate_unsynced", lambda: save(ours, "ours"),
               lambda: save(peer, "peer"))  # fmt: skip
        report("load_warm", lambda: ours("load", folder / "ours"),
               lambda: peer("load", folder / "peer"))  # fmt: skip
        save(ours, "beside"), ours("beside", folder / "beside")  # Memory is there now.
        report("save_beside_training_beside_a_copy", lambda: ours("beside", folder / "beside"),
               lambda: ours("copy", "-"))  # fmt: skip
        report("load_warm_beside_no_verification", lambda: ours("load", folder / "ours"),
               lambda: ours("read", folder / "ours"))  # fmt: skip
        report("load_cold", lambda: load_cold(ours, "ours"), lambda: load_cold(peer, "peer"))
    for side in ours, peer:
        side.process.stdin.close()
        side.process.wait()


if __name__ == "__main__":
    main()
