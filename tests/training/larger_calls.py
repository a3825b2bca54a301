"""Calls of realistic sizes for the operators of the table, for ``repeatable.py``: large enough for threads and vectors.

Sizes are odd and even, operands contiguous, transposed, in channels_last, and views that begin in a storage's middle.
"""

# ruff: noqa: B023 - each call is made before the loop goes on

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

aten = torch.ops.aten
Calls = Iterator[Callable[[], Any]]

PRODUCTS = (
    (1, 1, 1), (7, 13, 5), (64, 64, 64), (127, 129, 65), (256, 512, 384), (512, 2048, 17), (1, 1024, 1000),
    (1000, 1, 999), (33, 4097, 31), (2048, 64, 96), (3, 300, 2049),
)  # fmt: skip
"""Rows, what is summed over, columns."""
CONVOLUTIONS: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 3, 63, 65), (16, 3, 7, 7), {"stride": 2, "padding": 3}),
    ((4, 64, 28, 28), (64, 64, 3, 3), {"padding": 1}),
    ((3, 48, 17, 19), (96, 48, 1, 1), {}),
    ((2, 96, 31, 31), (96, 1, 7, 7), {"padding": 3, "groups": 96}),
    ((2, 32, 24, 24), (64, 8, 3, 3), {"padding": 2, "dilation": 2, "groups": 4}),
    ((5, 13, 11, 9), (7, 13, 3, 2), {}),
    ((16, 3, 32, 32), (64, 3, 3, 3), {"padding": 1}),
    ((4, 20, 501), (30, 20, 5), {"padding": 2}),
    ((2, 64, 1024), (64, 1, 4), {"padding": 3, "groups": 64}),
    ((1, 4, 9, 20, 21), (8, 4, 3, 3, 3), {"padding": 1}),
    ((2, 3, 8, 32, 32), (24, 3, 2, 4, 4), {"stride": (2, 4, 4)}),
)
TRANSPOSED: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 32, 15, 17), (32, 16, 4, 4), {"stride": 2, "padding": 1}),
    ((3, 20, 101), (20, 10, 3), {"stride": 2}),
    ((1, 8, 6, 7, 8), (8, 4, 2, 2, 2), {"stride": 2}),
    ((2, 16, 13, 13), (16, 8, 3, 3), {"padding": 2, "dilation": 2, "groups": 2}),
)


class Maker:
    """Of operands with one type of numbers."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(7)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def within(self, *shape: int) -> Tensor:
        """A view that begins three elements into its storage."""
        return torch.cat((self(3), self(*shape).reshape(-1), self(5)))[3:-5].view(shape)

    def integers(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=self.generator)

    def mask(self, *shape: int) -> Tensor:
        return self.integers(3, *shape) > 0


def larger_calls(dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(where it stands, the call), each to be made before the next."""
    families = (products, convolutions, norms, attention, reductions, pictures, indices, pointwise, losses, nets)
    for family in families:
        for number, call in enumerate(family(Maker(dtype))):
            yield f"{family.__name__} {number}", call


def products(make: Maker) -> Calls:
    for m, k, n in PRODUCTS:
        for operand in (make, make.within):
            a, at, b, bt, c = operand(m, k), operand(k, m), operand(k, n), operand(n, k), operand(m, n)
            row, v = operand(n), operand(k)
            yield lambda: [torch.mm(x, y) for x in (a, at.T) for y in (b, bt.T)]
            yield lambda: [torch.addmm(z, a, y) for z in (c, row) for y in (b, bt.T)]
            yield lambda: torch.addmm(c, a, b, beta=0.5, alpha=2)
            yield lambda: c.clone().addmm_(a, b)
            yield lambda: [F.linear(a, bt), F.linear(a, bt, row), F.linear(a.expand(3, m, k), bt, row)]
            yield lambda: [a.mv(v), at.T.mv(v), torch.addmv(operand(m), a, v), operand(m).addmv_(a, v)]
            yield lambda: [torch.dot(v, v), torch.vdot(v, v)]
            yield lambda: [torch.addr(c, operand(m), row), c.clone().addr_(operand(m), row)]
            yield lambda: [aten._addmm_activation(row, a, b, use_gelu=gelu) for gelu in (False, True)]
    for batch, m, k, n in ((3, 17, 33, 65), (8, 128, 64, 128), (16, 1, 64, 257), (24, 100, 100, 3)):
        for operand in (make, make.within):
            a, b, bt, c = operand(batch, m, k), operand(batch, k, n), operand(batch, n, k), operand(batch, m, n)
            heads = operand(m, batch, k).transpose(0, 1)
            yield lambda: [torch.bmm(x, y) for x in (a, heads) for y in (b, bt.mT)]
            yield lambda: [torch.baddbmm(c, a, b, beta=0.5), c.clone().baddbmm_(a, b)]
            yield lambda: [torch.addbmm(c[0], a, b), c[0].clone().addbmm_(a, b)]
            yield lambda: torch.einsum("bmk,bkn->bnm", a, b)
    yield lambda: F.bilinear(make(40, 30), make(40, 20), make(10, 30, 20), make(10))
    yield lambda: [torch.cdist(make(3, n, 20), make(3, 70, 20), p=p) for n in (10, 100) for p in (1.0, 2.0)]
    yield lambda: torch._grouped_mm(
        make(64, 32), make(4, 32, 48), offs=torch.tensor([16, 32, 40, 64], dtype=torch.int32)
    )


def convolutions(make: Maker) -> Calls:
    functions = {
        1: (F.conv1d, F.conv_transpose1d),
        2: (F.conv2d, F.conv_transpose2d),
        3: (F.conv3d, F.conv_transpose3d),
    }
    for transposed, cases in enumerate((CONVOLUTIONS, TRANSPOSED)):
        for (shape, weight_shape, words), operand in product(cases, (make, make.within)):
            x, w = operand(*shape), operand(*weight_shape)
            bias = operand(weight_shape[1] * words.get("groups", 1) if transposed else weight_shape[0])
            convolve = functions[len(shape) - 2][transposed]
            yield lambda: [convolve(x, w, **words), convolve(x, w, bias, **words)]
            if not transposed:
                yield lambda: mkldnn_convolution(x, w, bias, words)
            if len(shape) == 3:
                continue
            last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
            y, v = x.contiguous(memory_format=last), w.contiguous(memory_format=last)
            yield lambda: [convolve(y, w, bias, **words), convolve(y, v, **words)]
            trained = nn.Parameter(w.clone())
            yield lambda: convolve(x.clone().requires_grad_(), trained, bias, **words)
    yield lambda: torch.conv_tbc(make(50, 4, 20), make(3, 20, 30), make(30))


def mkldnn_convolution(x: Tensor, w: Tensor, bias: Tensor, words: dict[str, Any]) -> Tensor:
    def each(name: str, default: int) -> list[int]:
        value = words.get(name, default)
        return list(value) if isinstance(value, tuple) else [value] * (x.dim() - 2)

    return aten.mkldnn_convolution(
        x, w, bias, each("padding", 0), each("stride", 1), each("dilation", 1), words.get("groups", 1)
    )


def norms(make: Maker) -> Calls:
    for rows, width in ((1, 7), (33, 257), (512, 768), (2000, 96), (64, 4096)):
        x = make.within(rows, width)
        yield lambda: [
            F.layer_norm(x, (width,), make(width), make(width)),
            F.layer_norm(x, (width,)),
            F.layer_norm(x.float(), (width,), make(width).float(), make(width).float()),
            F.rms_norm(x, (width,), make(width)),
        ]
    for shape in ((4, 16, 9, 11), (8, 64, 28, 28), (3, 33, 50), (2, 8, 5, 12, 13), (64, 100)):
        c = shape[1]
        x = make.within(*shape)
        last = [x.contiguous(memory_format=torch.channels_last)] if len(shape) == 4 else []
        for y in (x, *last):
            yield lambda: [
                F.batch_norm(y, make(c), make(c).abs(), make(c), make(c), training=True),
                F.batch_norm(y, make(c), make(c).abs(), make(c), make(c), training=False),
                F.batch_norm(y, None, None, None, None, training=True),
                F.batch_norm(
                    y, make(c).float(), make(c).float().abs(), make(c).float(), make(c).float(), training=True
                ),
                aten._native_batch_norm_legit.no_stats(y, make(c), make(c), True, 0.1, 1e-5),
            ]
            if len(shape) > 2:
                yield lambda: F.instance_norm(y)
                groups = 4 if c % 4 == 0 else 3
                yield lambda: [F.group_norm(y, groups, make(c), make(c)), F.group_norm(y, 1), F.group_norm(y, c)]
    yield lambda: [
        torch._weight_norm(make(300, 200), make(300, 1), 0),
        torch._weight_norm(make(300, 200), make(1, 200), 1),
    ]
    yield lambda: [make(300, 200).renorm(2, 0, 1.0), make(300, 200).renorm_(2, 0, 1.0)]


def attention(make: Maker) -> Calls:
    for batch, heads, length, depth in (
        (1, 2, 7, 16),
        (2, 4, 129, 64),
        (2, 12, 512, 64),
        (3, 3, 200, 80),
        (1, 8, 1024, 128),
    ):
        for operand in (make, make.within):
            q, k, v = (operand(batch, length, heads, depth).transpose(1, 2) for _ in range(3))
            mask = make.mask(1, 1, length, length) | torch.eye(length, dtype=torch.bool)
            bias = make(batch, heads, length, length)
            yield lambda: F.scaled_dot_product_attention(q, k, v)
            yield lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
            yield lambda: [F.scaled_dot_product_attention(q, k, v, attn_mask=m) for m in (mask, bias)]
            yield lambda: F.scaled_dot_product_attention(q[:, :, : length // 2 + 1], k, v)
            scores = operand(batch, heads, length, length)
            yield lambda: [
                scores.softmax(-1), scores.log_softmax(-1), scores.softmax(-1, dtype=torch.float32), scores.softmax(1),
                torch._safe_softmax(scores.masked_fill(~mask, -torch.inf), -1), scores.softmax(-2),
                scores.log_softmax(1),
            ]  # fmt: skip
    yield lambda: aten._masked_softmax(make(4, 3, 50, 50), make.mask(50, 50), None, 0)
    yield lambda: F.scaled_dot_product_attention(
        make(2, 8, 60, 32), make(2, 2, 60, 32), make(2, 2, 60, 32), enable_gqa=True
    )


def reductions(make: Maker) -> Calls:
    for shape in ((7,), (100_003,), (513, 1027), (1030, 65), (40, 50, 60), (1, 300_000), (300_000, 1)):
        for x in (make.within(*shape), make(*shape).transpose(0, -1)):
            for dims in [None, 0, -1] if len(shape) > 1 else [None, 0]:
                some = {} if dims is None else {"dim": dims}
                yield lambda: [
                    f(x, **some)
                    for f in (torch.sum, torch.mean, torch.var, torch.std, torch.amax, torch.amin, torch.argmax,
                               torch.argmin,
                              torch.prod, torch.all, torch.any, torch.nansum, torch.count_nonzero, torch.max, torch.min,
                              torch.median, torch.var_mean, torch.std_mean, torch.aminmax, torch.linalg.vector_norm)
                ]  # fmt: skip
                yield lambda: [x.norm(p, **some) for p in (1, 2, 3)]
                yield lambda: x.sum(dtype=torch.float32, **some)
            yield lambda: [
                f(x, -1) for f in (torch.cumsum, torch.cumprod, torch.logsumexp, torch.logcumsumexp, torch.cummax)
            ]
            yield lambda: [torch.cumsum(x, 0), torch.logsumexp(x, 0), aten._logcumsumexp(x, 0), torch.cummin(x, 0)]
            yield lambda: [x.clone().cumsum_(-1), x.clone().cumprod_(-1)]
            yield lambda: [x.sort(-1), x.sort(dim=0, stable=True), x.topk(min(5, x.shape[-1]), -1), x.kthvalue(1, -1)]
            yield lambda: [
                aten.all.dims(x, [0]),
                aten.any.dims(x, [0]),
                aten.norm.Scalar(x),
                aten.norm.ScalarOpt_dtype(x, 2, dtype=torch.float32),
            ]
            yield lambda: aten.norm.ScalarOpt_dim_dtype(x, 2, [0], False, dtype=torch.float32)
            yield lambda: torch.dist(x, x.flip(-1))
    yield lambda: [make(500, 501).pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt(), make(500, 501).trace()]


def pictures(make: Maker) -> Calls:
    for shape in ((2, 3, 33, 35), (4, 32, 28, 28), (1, 130, 14, 15)):
        x = make.within(*shape)
        for y in (x, x.contiguous(memory_format=torch.channels_last)):
            yield lambda: [
                F.max_pool2d(y, 3, 2, 1), F.avg_pool2d(y, 2), F.avg_pool2d(y, 3, 1, 1, count_include_pad=False),
                F.adaptive_avg_pool2d(y, 1), F.adaptive_avg_pool2d(y, (7, 5)), F.adaptive_max_pool2d(y, 5),
                F.fractional_max_pool2d(y, 2, output_ratio=(0.5, 0.5), _random_samples=torch.rand(*shape[:2],
                2).to(y.dtype)),
            ]  # fmt: skip
            yield lambda: [
                F.interpolate(y, scale_factor=2.0, mode=mode)
                for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
            ]
            yield lambda: [F.interpolate(y, (17, 50), mode=mode, antialias=True) for mode in ("bilinear", "bicubic")]
            yield lambda: [
                F.pad(y, (2, 1, 3, 4), mode=mode) for mode in ("constant", "reflect", "replicate", "circular")
            ]
            yield lambda: [
                F.grid_sample(y, make(shape[0], 20, 21, 2), mode, padding, align_corners=False)
                for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border", "reflection")
            ]  # fmt: skip
            yield lambda: F.fold(F.unfold(y, 3, padding=1), shape[2:], 3, padding=1)
            yield lambda: F.prelu(y, make(shape[1]))
    yield lambda: F.affine_grid(make(4, 2, 3), [4, 3, 60, 61], align_corners=False)
    for shape in ((3, 20, 501), (8, 64, 100)):
        x = make.within(*shape)
        yield lambda: [
            F.max_pool1d(x, 3), F.avg_pool1d(x, 3), F.adaptive_avg_pool1d(x, 7), F.interpolate(x, scale_factor=2.0),
            F.interpolate(x, scale_factor=1.7, mode="linear"), F.interpolate(x, scale_factor=2.0, mode="nearest-exact"),
            F.pad(x, (3, 4), mode="reflect"), F.pad(x, (3, 4), mode="replicate"),
        ]  # fmt: skip
    for shape in ((2, 3, 8, 20, 21), (1, 16, 9, 14, 14)):
        x = make.within(*shape)
        for y in (x, x.contiguous(memory_format=torch.channels_last_3d)):
            yield lambda: F.avg_pool3d(y, 2)
            yield lambda: [
                F.max_pool3d(y, 2), F.adaptive_avg_pool3d(y, 3), F.adaptive_max_pool3d(y, 3),
                F.interpolate(y, scale_factor=2.0), F.interpolate(y, scale_factor=1.5, mode="trilinear"),
                F.interpolate(y, scale_factor=1.5, mode="nearest-exact"), F.pad(y, (1, 2, 3, 4, 1, 1), mode="reflect"),
                F.pad(y, (1, 2, 3, 4, 1, 1), mode="replicate"), F.grid_sample(y, make(shape[0], 5, 6, 7, 3),
                align_corners=True),
                F.fractional_max_pool3d(y, 2, output_ratio=(0.5, 0.5, 0.5), _random_samples=torch.rand(*shape[:2],
                3).to(y.dtype)),
            ]  # fmt: skip
    x = make.within(3, 36, 30, 31)
    yield lambda: [
        F.pixel_shuffle(x, 3),
        F.pixel_unshuffle(F.pixel_shuffle(x, 3), 3),
        F.channel_shuffle(x, 6),
        aten.native_channel_shuffle(x, 6),
    ]


def indices(make: Maker) -> Calls:
    x, y = make.within(1001, 203), make(203, 1001).T
    rows, mask = make.integers(1001, 3000), make.mask(1001, 203)
    last = make(8, 20, 30, 31)
    yield lambda: [F.embedding(rows.view(30, 100), x), F.embedding(rows, y, padding_idx=3)]
    yield lambda: [x[rows], y[rows], x[rows, rows % 203], x[:, rows % 203], x[mask], aten._unsafe_index(x, [rows])]
    yield lambda: [
        x.index_select(0, rows),
        y.index_select(1, rows % 203),
        x.take(rows),
        x.gather(0, rows[:2030].view(10, 203)),
    ]
    yield lambda: [
        torch.cat((x, y)),
        torch.cat((x, y, x), 1),
        torch.cat((last, last.contiguous(memory_format=torch.channels_last)), 1),
    ]
    yield lambda: [torch.stack((x, y)), torch.stack((x, y), -1), torch.block_diag(x, y)]
    yield lambda: [torch.where(mask, x, y), torch.where(mask, x, 0.0), torch.where(mask[:, :1], x, y)]
    yield lambda: [x.masked_fill(mask, 2.0), x.masked_fill(mask, make(1)[0]), y.clone().masked_fill_(mask, -3.0)]
    yield lambda: [
        x.clone().masked_fill_(mask, make(1)[0]),
        x.masked_scatter(mask, y),
        y.clone().masked_scatter_(mask, x),
    ]
    yield lambda: [x.index_fill(0, rows, 2.0), x.clone().index_fill_(0, rows, 2.0), x.index_fill(0, rows, make(1)[0])]
    yield lambda: x.clone().index_fill_(0, rows, make(1)[0])
    yield lambda: [x.tril(), y.triu(3), x.clone().tril_(-2), y.clone().triu_(), make(9, 100, 101).tril()]
    yield lambda: [x.roll(7, 0), y.roll((3, 5), (0, 1)), x.flip(0), x.rot90(), x.repeat(2, 3), y.diag_embed()[:1]]
    yield lambda: [
        torch.slice_scatter(x, y[:500], 0, 0, 500),
        torch.select_scatter(x, y[3], 0, 3),
        torch.diagonal_scatter(x, x[0]),
    ]
    yield lambda: [
        torch.bucketize(x, make(50).sort()[0]),
        torch.searchsorted(make(50).sort()[0], y),
        torch.isin(x, y[:5]),
    ]
    yield lambda: [
        t.to(d) for t in (x, y) for d in (torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.int64)
    ]
    yield lambda: [t.clone(memory_format=f) for t in (x, y) for f in (torch.contiguous_format, torch.preserve_format)]
    yield lambda: [
        last.contiguous(memory_format=torch.channels_last),
        y.contiguous(),
        last.permute(0, 2, 3, 1).contiguous(),
    ]
    yield lambda: [t.clone().copy_(s) for t in (x, y) for s in (x, y, x[0], x.float(), x.bfloat16(), x.double())]
    yield lambda: [
        torch.zeros(300_001),
        torch.ones(300_001),
        torch.full((300_001,), 0.3),
        torch.eye(500),
        torch.eye(500, 300),
    ]
    yield lambda: [
        torch.arange(300_001),
        torch.arange(1, 300_001),
        torch.arange(0.5, 90_000, 0.3),
        torch.linspace(0, 1, 100_003),
    ]
    yield lambda: [torch.tril_indices(300, 301), torch.triu_indices(300, 301), torch.scalar_tensor(2.5)]
    yield lambda: [x.clone().zero_(), y.clone().fill_(2.5), aten.fill_.Tensor(x.clone(), make(1)[0])]
    yield lambda: [x.topk(7), y.topk(20, 0), x.float().softmax(-1).topk(2), x.sort(dim=-1, stable=True), x.argsort(0)]
    yield lambda: torch.linalg.cross(make(3000, 3), make(3000, 3))


def pointwise(make: Maker) -> Calls:
    """What the database reaches in another overload, or not at all; it and the enlarged calls have the rest."""
    x, y, small = make.within(501, 403), make(403, 501).T, make(403)
    whole = make.integers(50, 501, 403) + 1
    for t in (x, y):
        yield lambda: [
            op(t, 1.3)
            for op in (aten.add.Scalar, aten.sub.Scalar, aten.mul.Scalar, aten.div.Scalar, aten.pow.Tensor_Scalar,
                       aten.rsub.Scalar,
                       aten.remainder.Scalar, aten.fmod.Scalar, aten.copysign.Scalar, aten.floor_divide.Scalar,
                       aten.xlogy.Scalar_Other,
                       aten.special_xlog1py.other_scalar, aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar,
                       aten.ge.Scalar, aten.eq.Scalar, aten.ne.Scalar, aten.clamp_min, aten.clamp_max)
        ]  # fmt: skip
        yield lambda: [
            op(t.clone(), 1.3)
            for op in (aten.add_.Scalar, aten.sub_.Scalar, aten.mul_.Scalar, aten.div_.Scalar, aten.pow_.Scalar,
                       aten.remainder_.Scalar,
                       aten.fmod_.Scalar, aten.copysign_.Scalar, aten.floor_divide_.Scalar, aten.xlogy_.Scalar_Other,
                       aten.lt_.Scalar,
                       aten.le_.Scalar, aten.gt_.Scalar, aten.ge_.Scalar, aten.eq_.Scalar, aten.ne_.Scalar,
                       aten.clamp_min_, aten.clamp_max_)
        ]  # fmt: skip
        yield lambda: [
            op(1.3, t)
            for op in (
                aten.pow.Scalar,
                aten.xlogy.Scalar_Self,
                aten.special_xlog1py.self_scalar,
            )
        ]
        yield lambda: [aten.special_zeta.other_scalar(t, 1.3), aten.special_zeta.self_scalar(1.3, t)]
        yield lambda: [aten.div.Scalar_mode(t, 1.3, rounding_mode=m) for m in ("floor", "trunc")]
        yield lambda: [aten.div_.Scalar_mode(t.clone(), 1.3, rounding_mode=m) for m in ("floor", "trunc")]
        yield lambda: [op(t, small) for op in (torch.add, torch.mul, torch.sub, torch.div, torch.maximum, torch.pow)]
        yield lambda: [op(t, small.float()) for op in (torch.add, torch.mul, torch.div)]
        yield lambda: [
            F.gelu(t), F.gelu(t, approximate="tanh"), F.silu(t), F.mish(t), F.softplus(t), F.elu(t), F.celu(t),
            F.selu(t), F.relu6(t),
            F.leaky_relu(t), F.hardswish(t), F.hardsigmoid(t), F.hardtanh(t), F.logsigmoid(t), F.glu(t[:, :402]),
            F.softshrink(t),
            F.threshold(t, 0.1, 20.0), F.relu(t), t.sigmoid(), t.tanh(), F.hardshrink(t), F.rrelu(t, training=False),
        ]  # fmt: skip
        yield lambda: [
            F.silu(t.clone(), True), F.relu(t.clone(), True), F.elu(t.clone(), inplace=True), F.mish(t.clone(), True),
            F.leaky_relu(t.clone(), 0.1, True), F.hardswish(t.clone(), True), F.hardsigmoid(t.clone(), True),
            F.celu(t.clone(), 1.0, True),
            F.hardtanh(t.clone(), -0.5, 0.5, True), F.threshold(t.clone(), 0.1, 2.0, True), aten.gelu_(t.clone()),
            t.clone().clamp_(-1, 1),
        ]  # fmt: skip
    bits = ("and", "or", "xor")
    yield lambda: [getattr(aten, f"bitwise_{b}").Scalar(whole, 3) for b in bits]
    yield lambda: [getattr(aten, f"bitwise_{b}").Scalar_Tensor(3, whole) for b in bits]
    yield lambda: [getattr(aten, f"bitwise_{b}_").Scalar(whole.clone(), 3) for b in bits]
    shifts = ("left", "right")
    yield lambda: [getattr(aten, f"bitwise_{s}_shift").Scalar_Tensor(3, whole) for s in shifts]
    yield lambda: [getattr(aten, f"bitwise_{s}_shift").Tensor_Scalar(whole, 3) for s in shifts]
    yield lambda: [getattr(aten, f"bitwise_{s}_shift_").Tensor_Scalar(whole.clone(), 3) for s in shifts]
    yield lambda: aten.remainder.Scalar_Tensor(7, whole)
    yield lambda: [aten.isin.Scalar_Tensor(3, whole), aten.isin.Tensor_Scalar(whole, 3)]
    yield lambda: [aten.bucketize.Scalar(3, torch.arange(9)), aten.searchsorted.Scalar(torch.arange(9), 3)]
    yield lambda: x.abs().xlogy_(y.abs())
    yield lambda: torch.polar(x.float().abs(), y.float()) * torch.complex(x.float(), y.float())
    yield lambda: [x.clamp(-1, 1), torch.lerp(x, y, y.sigmoid()), torch.count_nonzero(whole, dim=(0,))]
    yield lambda: [
        x.clone().addcdiv_(y, y.abs() + 1, value=-0.1),
        x.clone().lerp_(y, 0.1),
        x.clone().addcmul_(y, y, value=0.1),
    ]


def losses(make: Maker) -> Calls:
    for rows, classes in ((5, 7), (1000, 1003), (64, 50_257)):
        scores, labels = make.within(rows, classes), make.integers(classes, rows)
        for reduction in ("mean", "sum", "none"):
            yield lambda: [
                F.cross_entropy(scores, labels, reduction=reduction),
                F.cross_entropy(scores, labels, make(classes).abs(), reduction=reduction, label_smoothing=0.1),
            ]
    dense, classes = make.within(3, 21, 60, 61), make.integers(21, 3, 60, 61)
    x, y = make.within(500, 401), make(401, 500).T
    for reduction in ("mean", "sum", "none"):
        yield lambda: F.cross_entropy(dense, classes, reduction=reduction)
        yield lambda: [f(x, y, reduction=reduction) for f in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)]
        yield lambda: [
            F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction=reduction),
            F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), reduction=reduction),
            F.soft_margin_loss(x, y.sign(), reduction=reduction),
            F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction=reduction),
        ]


def nets(make: Maker) -> Calls:
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        net = kind(40, 64, num_layers=2, batch_first=True, bidirectional=kind is nn.LSTM).to(make.dtype)
        yield lambda: net(make(7, 30, 40))
