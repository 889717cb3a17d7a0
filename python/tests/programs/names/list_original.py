# SPDX-License-Identifier: Apache-2.0
import importlib
import json
import pkgutil
import types
import warnings

warnings.simplefilter("ignore")
import accelerate

names = {}
for info in pkgutil.walk_packages(accelerate.__path__, "accelerate."):
    if ".scripts." in info.name:
        names[info.name] = []
        continue
    try:
        module = importlib.import_module(info.name)
    except ImportError:
        names[info.name] = []
        continue
    names[info.name] = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, types.ModuleType)
        and (getattr(value, "__module__", None) or "accelerate").split(".")[0] == "accelerate"
        and (hasattr(value, "__module__") or name.isupper() and name != "TYPE_CHECKING")
    ]
names["accelerate"] = [n for n in vars(accelerate) if not n.startswith("_")]
print(json.dumps(names))
