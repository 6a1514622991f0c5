"""Dropout noise is Philox4x32-10 of an element's indices: the same by torch and by the kernel, for any split of a batch."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import partwise
from kernel_inputs import require_kernels, threads
from lazy_imports import lazy_module
from partwise.kernels.dropout import DropoutKey
from partwise.kernels.dropout import dropout as cpp_dropout
from partwise.parts.dropout import (
    Dropout,
    dropout,
    exact_product,
    held_mask,
    keep_mask,
    philox,
    signed,
    wrapped_product,
)

proxy_tensor = lazy_module("torch.fx.experimental.proxy_tensor")

KEY = DropoutKey(0.3, 0x0123456789ABCDEF, 5)
KEYS = (KEY, DropoutKey(0.3, 0xFEDCBA9876543210, 0), DropoutKey(0.3, 2**63, 7), DropoutKey(0.3, 2**64 - 5, 2**20))
"""Of several seeds, most of which an int64 has as negative numbers."""
SHAPES = [(3, 7, 64), (2, 3, 5, 21), (1, 2, 3, 1), (4, 33), (17,), (2, 3, 2, 4, 9), (2, 40, 200), (0, 4, 8)]


def reference_philox(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """Philox4x32-10 as in the paper, of one counter."""
    x, (k0, k1) = counter, key
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = (b >> 32 ^ x[1] ^ k0, b % 2**32, a >> 32 ^ x[3] ^ k1, a % 2**32)
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return x


KNOWN_ANSWERS = [  # of Random123
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_has_the_known_answers(counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]) -> None:
    assert reference_philox(counter, key) == words
    for product in (wrapped_product, exact_product):
        ours = philox([torch.tensor(each) for each in counter], key[0] | key[1] << 32, product)
        assert tuple(int(word) for word in ours) == words


def expected_mask(shape: tuple[int, ...], key: DropoutKey) -> Tensor:
    """Element by element."""
    rows, *heads, positions, elements = (*(1,) * max(0, 3 - len(shape)), *shape)
    halves, mask = (key.seed % 2**32, key.seed >> 32), []
    for row in range(rows):
        for head in range(math.prod(heads)):
            for position in range(positions):
                for element in range(elements):
                    words = reference_philox((element // 4, position, head, key.first_row + row), halves)
                    mask.append(words[element % 4] >= math.floor(key.p * 2**32))
    return torch.tensor(mask, dtype=torch.bool).view(shape)


@pytest.mark.parametrize("shape", SHAPES[:-2], ids=str)
def test_the_mask_is_a_function_of_each_elements_indices(shape: tuple[int, ...]) -> None:
    assert torch.equal(keep_mask(torch.ones(shape), KEY).bool(), expected_mask(shape, KEY))


@pytest.mark.parametrize("has_kernel", [False, True])
def test_what_is_kept_is_divided_by_its_probability(
    has_kernel: bool, monkeypatch: pytest.MonkeyPatch, shared_cache: Path
) -> None:
    if has_kernel:
        require_kernels()
    else:
        monkeypatch.setattr("partwise.parts.dropout.supports_dropout", lambda x: False)
    x, kept = torch.full((3, 7, 64), 2.0), expected_mask((3, 7, 64), KEY)
    y = dropout(x, KEY)
    assert torch.equal(y != 0, kept)
    torch.testing.assert_close(y[kept], x[kept] / 0.7)


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_equals_torch_bit_for_bit(
    shape: tuple[int, ...], dtype: torch.dtype, n_threads: int, shared_cache: Path
) -> None:
    """Outputs and gradients, of a tensor that is not contiguous."""
    require_kernels()
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(*shape[:-1], 2 * shape[-1], generator=generator).to(dtype)[..., ::2] for _ in range(2))
    x.requires_grad_()
    expected = x * keep_mask(x, KEY) / (1 - KEY.p)
    with threads(n_threads):
        y = cpp_dropout(x, KEY)
        (dx,) = torch.autograd.grad(y, x, grad)
    assert torch.equal(y, expected)
    assert torch.equal(dx, torch.autograd.grad(expected, x, grad)[0])


def test_gradients_have_gradients(shared_cache: Path) -> None:
    require_kernels()
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: cpp_dropout(x, KEY), (x,))


COMPILED = """
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from partwise.kernels.dropout import DropoutKey
from partwise.parts.dropout import Dropout, held_mask, keep_mask, signed
compiled = torch.compile(held_mask, fullgraph=True, dynamic=False)
x, seeds = torch.ones(4, 2, 8, 64), (0x0123456789ABCDEF, 0xFEDCBA9876543210, 2**64 - 5, 123456789012345678, 1)
keys = [DropoutKey(0.3, seed, 5) for seed in seeds]
for key in keys:
    assert torch.equal(compiled(x, key.p, torch.tensor(signed(key))), keep_mask(x, key)), key
for held in (False, True):
    layer = Dropout(0.3)
    layer.seed_keys = tuple(keys)
    if held:
        layer.held_seed_keys = layer.signed_keys(x.device)
    masks = torch.compile(make_fx(lambda x: layer.seed_masks(x))(x), fullgraph=True, dynamic=False)(x)
    assert torch.equal(masks, torch.stack([keep_mask(x, key) for key in keys])), held
"""


@pytest.mark.skipif(
    " " in sys.prefix, reason="torch's compiler links no library from a folder with a space in its name"
)
def test_inductor_compiles_the_same_mask() -> None:
    """With products that overflow it gave another mask on a CPU, for most seeds; with plain indices an error on CUDA."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True)  # of its own: torch's compiler keeps state


class Products(TorchDispatchMode):
    """The largest product, in float64."""

    largest = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten.mul.Tensor:
            self.largest = max(self.largest, (args[0].double() * args[1]).abs().max().item())
        return func(*args, **(kwargs or {}))


def test_no_product_of_a_compiled_mask_overflows() -> None:
    """Its overflow is undefined in C++: some compilers on some CPUs give another mask."""
    with Products() as products:
        held_mask(torch.ones(3, 7, 64), KEY.p, torch.tensor(signed(KEY)))
    assert 2**40 < products.largest < 2**63


@pytest.mark.parametrize("p", [1e-9, 0.1, 0.5, 0.9, 1 - 1e-12])
def test_the_rate_of_kept_elements(p: float) -> None:
    kept = keep_mask(torch.ones(100, 100, 100), DropoutKey(p, 1, 0)).mean().item()
    assert abs(kept - (1 - p)) <= 5 * math.sqrt(p * (1 - p) / 1e6) + 1e-6


def seeded(p: float, first_row: int = 0) -> Dropout:
    layer = Dropout(p)
    layer.site = "blocks.0.here"
    layer.seed(3, 14, first_row)
    return layer


def test_micro_batches_have_the_noise_of_the_whole_batch() -> None:
    x = torch.randn(6, 2, 9, 13)
    whole = seeded(0.4)(x)
    assert torch.equal(torch.cat([seeded(0.4)(x[:2]), seeded(0.4, 2)(x[2:5]), seeded(0.4, 5)(x[5:])]), whole)


def test_padding_does_not_change_the_noise() -> None:
    """Neither of activations (B, T, D), nor of attention weights (B, H, T, S)."""
    x, weights = torch.ones(3, 20, 16), torch.ones(3, 2, 20, 20)
    assert torch.equal(seeded(0.4)(x)[:, :11], seeded(0.4)(x[:, :11]))
    assert torch.equal(seeded(0.4)(weights)[:, :, :11, :11], seeded(0.4)(weights[:, :, :11, :11]))


def test_micro_batches_of_a_model_have_the_gradients_of_the_batch() -> None:
    words = ("embed_dropout=0.2", "attention.dropout=0.2", "residual.dropout=0.2", "ffn.hidden_dropout=0.2")
    model = partwise.Transformer(partwise.preset("mingpt", "d_model=16", "n_layers=2", *words, vocab_size=11)).double()
    tokens = torch.randint(11, (6, 12), generator=torch.Generator().manual_seed(0))
    grads = []
    for sizes in ([6], [2, 3, 1]):
        first_row = 0
        for rows in tokens.split(sizes):
            model.seed_dropout(1, 2, first_row)
            model(rows).square().sum().backward()
            first_row += len(rows)
        grads.append([each.grad for each in model.parameters() if each.grad is not None])
        model.zero_grad(set_to_none=True)
    assert all(torch.allclose(x, y, rtol=1e-9, atol=1e-9) for x, y in zip(*grads, strict=True))


def test_vmapped_noise_is_that_of_separate_runs() -> None:
    x, layer = torch.randn(2, 3, 4, 5, dtype=torch.float64), Dropout(0.3)
    layer.site = "here"
    separate = []
    for seed in (7, 8):
        layer.seed(seed, 1, 2)
        separate.append(layer(x[seed - 7]))
    layer.seed_vmapped([(7, 1, 2), (8, 1, 2)])
    assert torch.equal(torch.func.vmap(layer)(x), torch.stack(separate))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_masks_of_several_seeds_are_those_of_each(shape: tuple[int, ...]) -> None:
    x, expected = torch.ones(shape), torch.stack([keep_mask(torch.ones(shape), key) for key in KEYS])
    held = torch.tensor([signed(key) for key in KEYS])
    assert torch.equal(held_mask(x, KEY.p, held), expected)
    assert torch.equal(torch.stack([held_mask(x, KEY.p, key) for key in held]), expected)
    layer = Dropout(KEY.p)
    layer.seed_keys = KEYS
    assert torch.equal(layer.seed_masks(x), expected)
    assert torch.equal(layer.signed_keys(x.device), held)


def test_a_held_key_is_that_of_the_step() -> None:
    layer = seeded(0.3)
    layer.hold_key(torch.device("cpu"))
    held = []
    for step in (14, 15):
        layer.seed(3, step, first_row=2)
        assert layer.held_key is not None and layer.held_key.tolist() == signed(layer.key())
        held.append(layer.held_key.tolist())
    assert held[0] != held[1]


def test_a_traced_forward_pass_reads_the_keys_of_each_step() -> None:
    """With numbers it would repeat the noise of the step that was traced."""
    x, layer = torch.randn(3, 2, 4, 5, dtype=torch.float64), Dropout(0.3)
    layer.hold_key(x.device)
    layer.seed_vmapped([(seed, 0, 0) for seed in range(3)])
    graph = proxy_tensor.make_fx(torch.func.vmap(layer))(x)
    for step, first_row in ((0, 0), (1, 0), (1, 2)):
        layer.seed_vmapped([(seed, step, first_row) for seed in range(3)])
        expected = torch.stack([keep_mask(x[0], key) for key in layer.seed_keys])
        assert torch.equal(graph(x), x * expected / (1 - layer.p))
        assert torch.equal(torch.func.vmap(layer)(x), x * expected / (1 - layer.p))


def test_masks_of_several_seeds_are_one_computation() -> None:
    """A compiler takes minutes for one computation each."""

    def nodes(n_seeds: int) -> int:
        layer = Dropout(0.3)
        layer.seed_keys = tuple(DropoutKey(0.3, seed, 0) for seed in range(n_seeds))
        return len(proxy_tensor.make_fx(lambda x: layer.seed_masks(x))(torch.ones(2, 3, 4)).graph.nodes)

    assert nodes(1) == nodes(8)
