# SPDX-License-Identifier: Apache-2.0
# A module that starts a thread of this name.

import os
import threading
from pathlib import Path


def wait():
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(os.environ["THREAD_NAME"])
    is_named.set()
    threading.Event().wait()


is_named = threading.Event()
threading.Thread(target=wait, daemon=True).start()
is_named.wait()
