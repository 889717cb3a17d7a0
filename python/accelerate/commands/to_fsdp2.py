# SPDX-License-Identifier: Apache-2.0
"""The original's `accelerate to-fsdp2`: rewrites the FSDP section of a configuration file."""

from __future__ import annotations

import argparse
import enum
import json
import logging
from pathlib import Path
from typing import Any

from accelerate._placeholders import placeholders_for
from accelerate.commands.utils import CustomArgumentParser

logger = logging.getLogger(__name__)

_DESCRIPTION = "Convert an Accelerate config from FSDP1 to FSDP2"


class ConversionStatus(enum.Enum):
    NOT_YET_IMPLEMENTED = 0
    REMOVED = -1


# FSDP2's names for FSDP1's keys. Other keys are unchanged.
ARGUMENT_KEY_MAPPING: dict[str, str | ConversionStatus] = {
    **{
        f"fsdp_{name}": f"fsdp_{name}"
        for name in (
            "version",
            "reshard_after_forward",
            "auto_wrap_policy",
            "cpu_ram_efficient_loading",
            "offload_params",
            "state_dict_type",
            "transformer_layer_cls_to_wrap",
            "min_num_params",
            "activation_checkpointing",
        )
    },
    "fsdp_sharding_strategy": "fsdp_reshard_after_forward",
    "fsdp_backward_prefetch": ConversionStatus.REMOVED,
    "fsdp_sync_module_states": ConversionStatus.REMOVED,
    "fsdp_use_orig_params": ConversionStatus.REMOVED,
    "fsdp_forward_prefetch": ConversionStatus.NOT_YET_IMPLEMENTED,
}

_RESHARDS = {
    "FULL_SHARD": True,
    "SHARD_GRAD_OP": False,
    "HYBRID_SHARD": True,
    "HYBRID_SHARD_ZERO2": False,
    "NO_SHARD": False,
}
# The original's questionnaire writes the old values under the new key.
ARGUMENT_VALUE_MAPPING = {
    "fsdp_sharding_strategy": _RESHARDS,
    "fsdp_reshard_after_forward": _RESHARDS,
}


def convert_config_to_fsdp2(config: dict[str, Any]) -> dict[str, Any]:
    """Rewrites `fsdp_config` of a configuration in place. Has no effect if it does not exist or is
    already for FSDP2."""
    section = config.get("fsdp_config") or {}
    if not section:
        logger.info("No FSDP config found in the config file, skipping conversion...")
        return config
    if section.get("fsdp_version", 1) == 2:
        logger.warning(
            "Config already specifies FSDP2, skipping conversion. If it has FSDP1 keys, set "
            "`fsdp_version` to 1 and run the command again"
        )
        return config
    converted: dict[str, Any] = {}
    for key, value in section.items():
        name = ARGUMENT_KEY_MAPPING.get(key, key)
        if isinstance(name, ConversionStatus):
            why = "removed in" if name is ConversionStatus.REMOVED else "not yet part of"
            logger.warning("Argument %s is %s FSDP2, skipping this key...", key, why)
        elif isinstance(value, str):
            converted[name] = ARGUMENT_VALUE_MAPPING.get(key, {}).get(value, value)
        else:
            converted[name] = value
    converted["fsdp_version"] = 2
    config["fsdp_config"] = converted
    return config


def load_config(config_file: str) -> dict[str, Any]:
    import torch  # noqa: F401, the compiled module needs its libraries

    from accelerate import _C  # Loads torch.

    config: dict[str, Any] = json.loads(_C.read_config(config_file))
    if not config:
        raise ValueError("Config file is empty")
    return config


def to_fsdp2_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser
    if subparsers is not None:
        parser = subparsers.add_parser("to-fsdp2", description=_DESCRIPTION)
        parser.set_defaults(func=to_fsdp2_command)
    else:
        parser = CustomArgumentParser("accelerate to-fsdp2", description=_DESCRIPTION)
    parser.add_argument("--config_file", required=True, help="The file to convert")
    parser.add_argument("--overwrite", action="store_true", default=False, help="Replace a file")
    parser.add_argument("--output_file", help="File to write (not needed with --overwrite)")
    return parser


def to_fsdp2_command(args: argparse.Namespace) -> None:
    if not Path(args.config_file).exists():
        raise FileNotFoundError(f"Config file {args.config_file} not found")
    if args.output_file is None and not args.overwrite:
        raise ValueError("If --overwrite is not set, --output_file must be provided")
    target = args.output_file or args.config_file
    if not args.overwrite and Path(target).exists():
        raise FileExistsError(f"Output file {target} already exists and --overwrite is not set")
    converted = convert_config_to_fsdp2(load_config(args.config_file))

    from accelerate import _C  # Needs torch's libraries.

    _C.write_config(target, json.dumps(converted))


__getattr__ = placeholders_for(__name__)

if __name__ == "__main__":
    to_fsdp2_command(to_fsdp2_command_parser().parse_args())
