# SPDX-License-Identifier: Apache-2.0
import sys

from accelerate.commands.launch import launch_command, launch_command_parser

words = ["--cpu", "--num_processes", "2", "--grace_seconds", "1", sys.argv[1]]
launch_command(launch_command_parser().parse_args(words))
