# SPDX-License-Identifier: Apache-2.0
import json

from accelerate.commands.utils import CustomArgumentParser

parser = CustomArgumentParser("x")
parser.add_argument("--one_two", type=int)
group = parser.add_argument_group("more")
group.add_argument("--three_four", action="store_true")
group.add_argument("--five", default=5)
found = [
    vars(parser.parse_args(words))
    for words in (
        [],
        ["--one-two", "1", "--three-four"],
        ["--one_two=2", "--three_four", "--five", "a"],
    )
]
print(json.dumps(found, default=sorted))
