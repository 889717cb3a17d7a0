# SPDX-License-Identifier: Apache-2.0
import os
import time

from accelerate import notebook_launcher


def train():
    open(f"{folder}/{os.getpid()}", "w").close()
    time.sleep(600)


folder = os.environ["ACCELERATE_TEST_FOLDER"]
notebook_launcher(train, num_processes=2)
