# SPDX-License-Identifier: Apache-2.0
"""What the Python packages say about files that the tests made.

oracle.py verdicts FILE      one letter for each file in FILE (4 bytes of length before each)
oracle.py dump FILE          the tensors and the metadata, as JSON
oracle.py rewrite FILE OUT   reads FILE with Python and writes it again
oracle.py models FOLDER      folders of random models, and what the original says of each
oracle.py distribute FOLDER  FOLDER/dcp by torch.distributed.checkpoint of two processes, and
                             FOLDER/expected.safetensors
oracle.py compare A B ...    "equal" where in each pair of weights both hold the same tensors
"""

import contextlib
import ctypes
import json
import pathlib
import random
import shutil
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "tools"))


def verdicts(path):
    from make_safetensors_reference import verdict

    data, at, out = pathlib.Path(path).read_bytes(), 0, ""
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        out += verdict(data[at + 4 : at + 4 + size])
        at += 4 + size
    return out


def read(path):
    from safetensors import deserialize, safe_open

    tensors = dict(deserialize(pathlib.Path(path).read_bytes()))
    with safe_open(path, framework="numpy") as file:
        return tensors, file.metadata()


def dump(path):
    tensors, metadata = read(path)
    for info in tensors.values():
        info["data"] = bytes(info["data"]).hex()
    return json.dumps({"tensors": tensors, "metadata": metadata})


PYTHON_NAMES = {
    "BOOL": "bool", "F4": "float4_e2m1fn_x2", "U8": "uint8", "I8": "int8",
    "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "I16": "int16",
    "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32",
    "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64",
}  # fmt: skip


def rewrite(path, out):
    from safetensors import TensorSpec, serialize_file

    tensors, metadata = read(path)
    specs, buffers = {}, []
    for name, info in tensors.items():
        data, shape = bytes(info["data"]), list(info["shape"])
        if info["dtype"] == "F4":
            shape[-1] //= 2  # Python counts pairs.
        buffers.append(ctypes.create_string_buffer(data, max(len(data), 1)))
        specs[name] = TensorSpec(
            dtype=PYTHON_NAMES[info["dtype"]],
            shape=shape,
            data_ptr=ctypes.addressof(buffers[-1]),
            data_len=len(data),
        )
    serialize_file(specs, out, metadata)
    return "done"


def random_models(seed):
    import transformers as t

    rng = random.Random(seed)
    heads = rng.choice([2, 4])
    width = heads * rng.choice([8, 16, 24])
    layers, vocab = rng.randint(1, 3), rng.randint(60, 900)
    common = dict(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=rng.choice([32, 64, 200]),
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    text = dict(common, vocab_size=vocab, max_position_embeddings=rng.choice([40, 128, 514]))
    untied = dict(text, tie_word_embeddings=False)
    small_gpt = dict(n_embd=width, n_layer=layers, n_head=heads, vocab_size=vocab, n_positions=70,
                     bos_token_id=1, eos_token_id=2)
    return [
        (t.BertModel, t.BertConfig(**text)),
        (t.BertForSequenceClassification, t.BertConfig(**text, num_labels=5)),
        (t.BertForMaskedLM, t.BertConfig(**text)),
        (t.RobertaModel, t.RobertaConfig(**text)),
        (t.XLMRobertaModel, t.XLMRobertaConfig(**text)),
        (t.ElectraModel, t.ElectraConfig(**text, embedding_size=16)),
        (t.AlbertModel, t.AlbertConfig(**text, embedding_size=16)),
        (t.DistilBertModel, t.DistilBertConfig(dim=width, n_layers=layers, n_heads=heads,
                                               hidden_dim=50, vocab_size=vocab, pad_token_id=0)),
        (t.MPNetModel, t.MPNetConfig(**text)),
        (t.DebertaV2Model, t.DebertaV2Config(**text)),
        (t.ViTModel, t.ViTConfig(**{k: v for k, v in common.items() if "token" not in k},
                                 image_size=16, patch_size=4)),
        (t.GPT2Model, t.GPT2Config(**small_gpt)),
        (t.GPT2LMHeadModel, t.GPT2Config(**small_gpt)),
        (t.OPTModel, t.OPTConfig(ffn_dim=64, word_embed_proj_dim=width,
                                 **{k: v for k, v in text.items() if k != "intermediate_size"})),
        (t.GPTNeoXModel, t.GPTNeoXConfig(**text)),
        (t.GPTNeoXForCausalLM, t.GPTNeoXConfig(**untied)),
        (t.LlamaModel, t.LlamaConfig(**text)),
        (t.LlamaForCausalLM, t.LlamaConfig(**untied)),
        (t.LlamaForCausalLM, t.LlamaConfig(**dict(text, tie_word_embeddings=True))),
        (t.MistralModel, t.MistralConfig(**text, head_dim=16, num_key_value_heads=2)),
        (t.MixtralModel, t.MixtralConfig(**text, num_local_experts=2, num_key_value_heads=2)),
        (t.PhiModel, t.PhiConfig(**text)),
        (t.Qwen2Model, t.Qwen2Config(**text, num_key_value_heads=2)),
        (t.Qwen3Model, t.Qwen3Config(**text, num_key_value_heads=2, head_dim=16)),
        (t.Gemma2Model, t.Gemma2Config(**text, num_key_value_heads=2, head_dim=16)),
    ]  # fmt: skip


def estimates(model):
    """The original's own arithmetic."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes, convert_bytes

    total, (largest, names) = calculate_maximum_sizes(model)
    rows = []
    for dtype, shrink in ("float32", 1), ("float16", 2), ("int8", 4), ("int4", 8):
        training = max(estimate_training_usage(total, dtype).values())
        row = [largest / shrink, total / shrink, training if training != -1 else None]
        words = [convert_bytes(x) if x is not None else "N/A" for x in row]
        rows.append({"dtype": dtype, "bytes": row, "words": words})
    return {"largest_layers": sorted(names), "rows": rows}


def empty_model(cls, folder):
    import torch
    import transformers
    from accelerate import init_empty_weights

    config = transformers.AutoConfig.from_pretrained(folder)
    with init_empty_weights():
        return cls._from_config(config, dtype=torch.float32)


def models(folder):
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    out = {}
    for seed in range(2):
        for cls, config in random_models(seed):
            name = f"{len(out):02}-{cls.__name__}"
            path = pathlib.Path(folder) / name
            torch.manual_seed(seed)
            model = cls(config).to(torch.bfloat16 if seed else torch.float32)
            model.save_pretrained(path, max_shard_size="20KB" if seed else "1GB")
            # An empty model loses its ties, and so counts shared tensors twice.
            is_tied = len(dict(model.named_parameters())) < len(
                dict(model.named_parameters(remove_duplicate=False))
            )
            out[name] = estimates(model.float() if is_tied else empty_model(cls, path))
    real = pathlib.Path(folder) / "real"
    if real.exists():
        out["real"] = estimates(empty_model(transformers.BertModel, real))
    return json.dumps(out)


def compare(*paths):
    pairs = zip(paths[::2], paths[1::2], strict=True)
    return "equal" if all(is_equal(*pair) for pair in pairs) else "different"


def is_equal(first, second):
    import torch
    from safetensors.torch import load_file

    def load(path):
        path = pathlib.Path(path)
        files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
        return {k: v for file in files for k, v in load_file(file).items()}

    a, b = load(first), load(second)
    same = a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a
    )
    return same and a and loads_alike(first, second)


def loads_alike(folder, merged):
    """Whether transformers makes the same model of a folder and of its merged file."""
    import torch
    import transformers

    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())
    cls = getattr(transformers, config["architectures"][0])
    with tempfile.TemporaryDirectory() as copy:
        shutil.copy(folder / "config.json", copy)
        shutil.copy(merged, pathlib.Path(copy) / "model.safetensors")
        a, b = (cls.from_pretrained(path).state_dict() for path in (folder, copy))
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def save_distributed(rank, folder, size):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(3)
    whole = {
        "layers.0.weight": torch.randn(5, 3, 2),
        "layers.0.bias": torch.randn(7).to(torch.bfloat16),
        "layers.1.weight": torch.randn(4, 6).to(torch.float16),
        "counts": torch.randint(0, 99, (3, 2)),
        "scale": torch.tensor(2.5, dtype=torch.float64),
        "mask": torch.tensor([True, False, True]),
    }
    cut = {"layers.0.weight": 0, "layers.0.bias": 0, "layers.1.weight": 1}
    state = {k: distribute_tensor(v, mesh, [Shard(cut[k])]) if k in cut else v
             for k, v in whole.items()}
    # Neither row by row nor alone in its memory.
    state["turned"] = torch.arange(24.0).reshape(4, 6)[1:, 2:].t()
    dcp.save({"model": {**state, "note": "no tensor"}}, checkpoint_id=f"{folder}/dcp")
    if rank == 0:
        from safetensors.torch import save_file

        whole["turned"] = state["turned"].contiguous()
        save_file(whole, f"{folder}/expected.safetensors", {"format": "pt"})
    dist.destroy_process_group()


def distribute(folder):
    import torch.multiprocessing as processes

    processes.spawn(save_distributed, (folder, 2), nprocs=2)
    return "done"


COMMANDS = {
    "distribute": distribute,
    "verdicts": verdicts,
    "dump": dump,
    "rewrite": rewrite,
    "models": models,
    "compare": compare,
}

if __name__ == "__main__":
    # Whatever the packages print must not mix with the answer.
    with contextlib.redirect_stdout(sys.stderr):
        answer = COMMANDS[sys.argv[1]](*sys.argv[2:])
    print(answer)
