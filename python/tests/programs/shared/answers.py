# SPDX-License-Identifier: Apache-2.0
"""How a program of several ranks returns a result to its test."""

import json
import os


def answer(value):
    with open("answer" + os.environ.get("RANK", "0"), "w") as file:
        json.dump(value, file)
