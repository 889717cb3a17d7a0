# SPDX-License-Identifier: Apache-2.0
"""The operators of `accelerate.kernels` compared with torch's own, on the CPU and, if available, on
a GPU.

In float64 both compute the same sums in another order: 1e-10. In bf16 (8 bits) torch rounds between
its operators and ours do not: a few units in the last place of the largest value."""

from __future__ import annotations

import pytest
import torch
from accelerate import kernels
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

ROWS, WIDTH = 24, 40


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
DEVICES = [
    pytest.param("cpu", torch.float64, 1e-10, id="cpu"),
    pytest.param("cpu", torch.bfloat16, 0.06, id="cpu-bf16"),
    pytest.param("cuda", torch.float32, 1e-4, id="gpu", marks=NO_GPU),
    pytest.param("cuda", torch.bfloat16, 0.06, id="gpu-bf16", marks=NO_GPU),
]


def compare(ours, theirs, shapes, device, dtype, tolerance):
    """Compares results and gradients of two functions of tensors with these shapes."""
    torch.manual_seed(5)
    values = [torch.randn(shape, device=device, dtype=torch.float64) for shape in shapes]
    outcomes = []
    # The expected values are torch's in float64.
    for function, kind in ((ours, dtype), (theirs, torch.float64)):
        tensors = [value.to(dtype).to(kind).requires_grad_() for value in values]
        results = function(*tensors)
        results = results if isinstance(results, tuple) else (results,)
        torch.manual_seed(6)
        sum((r.double() * torch.randn(r.shape, device=device)).sum() for r in results).backward()
        outcomes.append([r.detach() for r in results] + [t.grad for t in tensors])
    for got, expected in zip(*outcomes, strict=True):
        scale = expected.abs().max().clamp(min=1)
        assert (got.double() - expected).abs().max() / scale < tolerance


def angles(device):
    turns = torch.linspace(0, 9, 6 * 4, device=device).view(1, 6, 4)
    return turns.cos(), turns.sin()


def turned(x):
    cos, sin = (part[:, :, None].double() for part in angles(x.device))
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def rms(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


ROW, VECTOR, MATRIX = (ROWS, WIDTH), (WIDTH,), (WIDTH, WIDTH)
IDS = torch.tensor([[7, 0, 7, 299], [3, 7, 0, 1]])
CASES = {
    "layer_norm": (
        lambda x, w, b: kernels.layer_norm(x, w, b, 1e-3),
        lambda x, w, b: functional.layer_norm(x, (WIDTH,), w, b, 1e-3),
        [ROW, VECTOR, VECTOR],
    ),
    "add": (
        lambda x, y: kernels.add_dropout(x, y),
        lambda x, y: x + y,
        [ROW, ROW],
    ),
    "add_bias": (
        lambda x, y, b: kernels.add_dropout(x, y, b),
        lambda x, y, b: x + y + b,
        [ROW, ROW, VECTOR],
    ),
    "add_layer_norm": (
        lambda x, y, c, w, b: kernels.add_dropout_layer_norm(x, y, c, w, b),
        lambda x, y, c, w, b: (x + y + c, functional.layer_norm(x + y + c, (WIDTH,), w, b)),
        [ROW, ROW, VECTOR, VECTOR, VECTOR],
    ),
    "add_layer_norm_twice": (
        lambda x, y, c, w, b: kernels.add_dropout_layer_norm_twice(x, y, c, w, b),
        lambda x, y, c, w, b: (functional.layer_norm(x + y + c, (WIDTH,), w, b),) * 2,
        [ROW, ROW, VECTOR, VECTOR, VECTOR],
    ),
    "embedding": (
        lambda w: kernels.embedding(IDS.to(w.device), w, -1),
        lambda w: functional.embedding(IDS.to(w.device), w, -1),
        [(300, WIDTH)],
    ),
    "linear": (kernels.linear, functional.linear, [ROW, MATRIX, VECTOR]),
    "linear_gelu_linear": (
        kernels.linear_gelu_linear,
        lambda x, u, b, d: functional.gelu(functional.linear(x, u, b)) @ d.t(),
        [ROW, MATRIX, VECTOR, MATRIX],
    ),
    "linear_gelu_tanh_linear": (
        lambda x, u, b, d: kernels.linear_gelu_linear(x, u, b, d, "tanh"),
        lambda x, u, b, d: functional.gelu(functional.linear(x, u, b), approximate="tanh") @ d.t(),
        [ROW, MATRIX, VECTOR, MATRIX],
    ),
    "rms_norm": (
        lambda x, w: kernels.rms_norm(x, w, 1e-3),
        lambda x, w: rms(x, w, 1e-3),
        [ROW, VECTOR],
    ),
    "add_rms_norm": (
        lambda x, y, w: kernels.add_rms_norm(x, y, w, 1e-3),
        lambda x, y, w: (x + y, rms(x + y, w, 1e-3)),
        [ROW, ROW, VECTOR],
    ),
    "rotate": (lambda x: kernels.rotate(x, *angles(x.device)), turned, [(2, 6, 3, 8)]),
    "swiglu": (kernels.swiglu, lambda g, u: functional.silu(g) * u, [ROW, ROW]),
}


@pytest.mark.parametrize(("device", "dtype", "tolerance"), DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_torch(name, device, dtype, tolerance):
    if name == "rotate" and dtype == torch.float64:
        tolerance = 1e-6  # Angles are given in float32.
    compare(*CASES[name], device, dtype, tolerance)


@pytest.mark.parametrize(("device", "dtype", "tolerance"), DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_what_is_checkpointed_is_computed_again(name, device, dtype, tolerance):
    """A checkpoint returns each saved tensor only once."""
    ours, theirs, shapes = CASES[name]
    if name == "rotate" and dtype == torch.float64:
        tolerance = 1e-6  # Angles are given in float32.

    def again(*tensors):
        return checkpoint(ours, *tensors, use_reentrant=False)

    compare(again, theirs, shapes, device, dtype, tolerance)


@pytest.mark.parametrize(("device", "dtype", "tolerance"), DEVICES)
def test_cross_entropy_leaves_out_padding_and_ignored_rows(device, dtype, tolerance):
    labels = torch.randint(0, 30, (ROWS,), device=device)
    labels[3] = 7777
    compare(
        lambda logits: kernels.cross_entropy(logits, labels, 30, ignore_index=7777),
        lambda logits: functional.cross_entropy(logits[:, :30], labels, ignore_index=7777),
        [ROW],
        device,
        dtype,
        tolerance,
    )


@pytest.mark.parametrize(("device", "dtype", "tolerance"), DEVICES)
def test_dropout_keeps_the_expected_share_and_its_gradient(device, dtype, tolerance):
    zeros = torch.zeros(1000, 64, device=device, dtype=dtype)
    branch = torch.ones_like(zeros, requires_grad=True)
    dropped = kernels.add_dropout(zeros, branch, p=0.25)
    dropped.sum().backward()
    assert torch.equal(dropped.detach(), branch.grad)
    kept = (dropped != 0).float().mean().item()
    # Six deviations of the mean of 64,000 draws: 0.0103.
    assert abs(kept - 0.75) < 0.011
    assert dropped.max().item() == pytest.approx(1 / 0.75, rel=2**-8)


def test_a_module_of_ones_own_trains_with_them():
    from accelerate import Accelerator

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(WIDTH, WIDTH)
            self.norm = torch.nn.LayerNorm(WIDTH)
            self.head = torch.nn.Linear(WIDTH, 5)

        def forward(self, x):
            y = x @ self.inner.weight.t()
            _, x = kernels.add_dropout_layer_norm(
                x, y, self.inner.bias, self.norm.weight, self.norm.bias
            )
            return self.head(x)

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = Block()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    x, labels = torch.randn(64, WIDTH), torch.randint(0, 5, (64,))
    losses = []
    for _ in range(30):
        loss = kernels.cross_entropy(model(x), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_compiled_functions_may_use_them():
    def function(x, y, w, b):
        total, normed = kernels.add_dropout_layer_norm(x, y, None, w, b)
        first, second = kernels.add_dropout_layer_norm_twice(x, y, None, w, b)
        rows = kernels.embedding(IDS % ROWS, x)
        return (total * kernels.swiglu(normed, y) + first * second).sum() + rows.square().sum()

    gradients = []
    for run in (function, torch.compile(function, backend="aot_eager")):
        torch.manual_seed(1)
        tensors = [torch.randn(s, requires_grad=True) for s in (ROW, ROW, VECTOR, VECTOR)]
        run(*tensors).backward()
        gradients.append([t.grad for t in tensors])
    for plain, compiled in zip(*gradients, strict=True):
        assert torch.equal(plain, compiled)


LENGTHS = [5, 1, 7, 3, 1]
STARTS = [0, 5, 6, 13, 16, 17]


def attention_of_each(causal, scale, group):
    def attend(q, k, v):
        parts = zip(*(x.transpose(0, 1).split(LENGTHS, 1) for x in (q, k, v)), strict=True)
        results = []
        for query, key, value in parts:
            key, value = (x.repeat_interleave(group, 0) for x in (key, value))
            results.append(
                functional.scaled_dot_product_attention(
                    query, key, value, is_causal=causal, scale=scale
                )
            )
        return torch.cat(results, 1).transpose(0, 1)

    return attend


@pytest.mark.parametrize(("device", "dtype", "tolerance"), DEVICES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "channels", "scale"), [(4, 8, None), (2, 8, 0.3), (1, 5, None)])
def test_packed_attention_is_that_of_each_sequence(
    device, dtype, tolerance, causal, heads, channels, scale
):
    shapes = [(17, 4, channels), (17, heads, channels), (17, heads, channels)]
    expected = attention_of_each(causal, scale, 4 // heads)
    starts = torch.tensor(STARTS, device=device)
    for given in (
        {"lengths": LENGTHS},
        {"cu_seqlens": starts, "max_length": 7},
        {"cu_seqlens": starts.int(), "max_length": 9},
    ):

        def ours(q, k, v, given=given):
            return kernels.packed_attention(q, k, v, causal=causal, scale=scale, **given)

        compare(ours, expected, shapes, device, dtype, tolerance)


def test_packed_attention_takes_parts_of_one_product_and_drops():
    torch.manual_seed(3)
    joined = torch.randn(17, 3, 2, 8, dtype=torch.float64, requires_grad=True)
    q, k, v = joined.unbind(1)
    plain = kernels.packed_attention(q, k, v, lengths=LENGTHS)
    assert torch.allclose(plain, attention_of_each(False, None, 1)(q, k, v))
    dropped = kernels.packed_attention(q, k, v, lengths=LENGTHS, dropout=0.5)
    # A sequence of one token gives its value, doubled or dropped.
    ratio = dropped[5] / v[5]
    assert all(torch.allclose(head, torch.full_like(head, 2.0)) or not head.any() for head in ratio)
    assert not torch.allclose(dropped, plain)
    dropped.sum().backward()
    assert joined.grad.isfinite().all()


def test_packed_attention_tells_what_is_wrong():
    x = torch.ones(5, 4, 8)
    starts = torch.tensor([0, 3, 5])

    def call(query=x, key=x, value=x, **given):
        return kernels.packed_attention(
            query, key, value, **(given or {"cu_seqlens": starts, "max_length": 3})
        )

    assert call().shape == x.shape
    for given in ({"max_length": 3}, {"lengths": [5], "cu_seqlens": starts, "max_length": 3}):
        with pytest.raises(ValueError, match="either lengths or cu_seqlens"):
            call(**given)
    for given in ({"cu_seqlens": starts}, {"lengths": [5], "max_length": 5}):
        with pytest.raises(ValueError, match="Pass max_length if and only if"):
            call(**given)
    for lengths in ([], [3, 3], [6, -1]):
        with pytest.raises(ValueError, match="but there are 5 tokens"):
            call(lengths=lengths)
    for lengths in (5, "23", [2.5, 2.5]):
        with pytest.raises(TypeError, match="expected a list of integers"):
            call(lengths=lengths)
    with pytest.raises(TypeError, match="expected a tensor"):
        call(cu_seqlens=[0, 5], max_length=5)
    for wrong in ([0, 3, 4], [1, 3, 5], [0, 4, 5], [0, 6, 5]):
        with pytest.raises(RuntimeError, match="do not split 5 tokens into sequences of at most 3"):
            call(cu_seqlens=torch.tensor(wrong), max_length=3)
    for wrong in (starts.float(), starts[None], starts[:1]):
        with pytest.raises(RuntimeError, match=r"\[packed_attention\] Got starts"):
            call(cu_seqlens=wrong, max_length=3)
    with pytest.raises(RuntimeError, match=r"\[packed_attention\] max_length is 0"):
        call(cu_seqlens=starts, max_length=0)
    for wrong in (-0.1, 1.0):
        with pytest.raises(RuntimeError, match=r"\[packed_attention\] dropout is"):
            call(cu_seqlens=starts, max_length=3, dropout=wrong)
    for wrong in (x[:4], x[:, :3], x[..., :4], x.double(), x[0]):
        with pytest.raises(RuntimeError, match=r"\[packed_attention\] Got queries"):
            call(key=wrong, value=wrong)
    with pytest.raises(RuntimeError, match=r"\[packed_attention\] Got queries"):
        call(*[x.int()] * 3)


def test_compiled_functions_may_use_packed_attention_and_cross_entropy():
    labels = torch.tensor([1, 0, 3, 2, 1, 0])

    def function(q, k, v):
        y = kernels.packed_attention(q, k, v, lengths=[3, 1, 2], causal=True)
        return kernels.cross_entropy(y.flatten(1), labels)

    gradients = []
    for run in (function, torch.compile(function, backend="aot_eager")):
        torch.manual_seed(1)
        tensors = [torch.randn(6, 2, 4, requires_grad=True) for _ in range(3)]
        run(*tensors).backward()
        gradients.append([t.grad for t in tensors])
    for plain, compiled in zip(*gradients, strict=True):
        assert torch.equal(plain, compiled)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("linear", torch.bfloat16),
        ("linear_gelu_linear", torch.bfloat16),
        ("layer_norm", torch.float32),
        ("add_layer_norm_twice", torch.float32),
    ],
)
def test_autocast_lowers_products_and_widens_sums(name, dtype):
    """float32 weights with a bfloat16 activation."""
    ours, theirs, shapes = CASES[name]
    gradients = []
    for function in (ours, theirs):
        torch.manual_seed(3)
        x, *others = [torch.randn(shape, requires_grad=True) for shape in shapes]
        with torch.autocast("cpu", torch.bfloat16):
            results = function(torch.tanh(x.bfloat16()), *others)
        results = results if isinstance(results, tuple) else (results,)
        sum(r.float().square().sum() for r in results).backward()
        gradients.append([t.grad for t in (x, *others)])
        assert function is theirs or results[0].dtype == dtype
    for own, expected in zip(*gradients, strict=True):
        # Products of bfloat16 values, which are rounded in other places.
        assert (own - expected).abs().max() <= 0.05 * expected.abs().max().clamp(min=1)


@pytest.mark.parametrize("name", CASES)
def test_there_is_no_second_derivative(name):
    ours, _, shapes = CASES[name]
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    results = ours(*tensors)
    results = results if isinstance(results, tuple) else (results,)
    total = sum(r.double().pow(3).sum() for r in results)
    first = torch.autograd.grad(total, tensors, create_graph=True)
    with pytest.raises(RuntimeError, match="Second derivatives are not supported"):
        torch.autograd.grad(sum(g.square().sum() for g in first), tensors)


def test_packed_attention_keeps_sequences_apart_and_takes_what_is_empty():
    tensors = [torch.randn(6, 2, 4, requires_grad=True) for _ in range(3)]
    y = kernels.packed_attention(*tensors, lengths=[1, 0, 5])
    y.backward(torch.cat([torch.full((1, 2, 4), torch.nan), torch.ones(5, 2, 4)]))
    for tensor in tensors:
        assert tensor.grad[1:].isfinite().all()
    # No sequence is longer than the total: otherwise this would take terabytes.
    starts = torch.tensor([0, 1, 6])
    long = kernels.packed_attention(*tensors, cu_seqlens=starts, max_length=2**40)
    assert torch.equal(long, y)
    none = [torch.randn(0, 2, 4, requires_grad=True) for _ in range(3)]
    kernels.packed_attention(*none, cu_seqlens=torch.tensor([0, 0]), max_length=1).sum().backward()
    assert all(tensor.grad.shape == (0, 2, 4) for tensor in none)


def test_wrong_shapes_and_names_raise():
    with pytest.raises(ValueError, match="expected 'none' or 'tanh'"):
        kernels.linear_gelu_linear(*(torch.ones(2, 2) for _ in range(4)), approximate="erf")
    with pytest.raises(RuntimeError, match=r"\[swiglu\] Got"):
        kernels.swiglu(torch.ones(2), torch.ones(3))
    with pytest.raises(RuntimeError, match=r"\[cross_entropy\] Got"):
        kernels.cross_entropy(torch.ones(2, 3), torch.ones(2))


def test_the_cpu_has_no_kernels_of_its_own():
    assert not kernels.has_kernels("cpu")
