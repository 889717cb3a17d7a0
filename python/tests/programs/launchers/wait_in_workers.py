# SPDX-License-Identifier: Apache-2.0
import os
import signal
import sys
import time

from accelerate.launchers import debug_launcher

folder = sys.argv[1]
ignores_interrupts = "ignore_interrupts" in sys.argv


def train():
    if ignores_interrupts:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    open(f"{folder}/{os.getpid()}.pid", "w").close()
    time.sleep(600)


try:
    debug_launcher(train)
except KeyboardInterrupt:
    print("interrupted")
