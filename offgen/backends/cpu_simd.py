"""Vectors for Numba: what LLVM can do and Python loops cannot say. Knows lanes, no tensor and no layout.

Numba compiles these intrinsics into the kernel that calls them. The vector width is the machine's, so that a tile's
accumulators stay in registers; arithmetic on each lane is the same at every width, so results are too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

F32, I8, I16, I32, I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
BYTES = I8.as_pointer()

# How a stored value becomes a float32 lane. Plain ints: Numba passes them as literals.
FLOAT32, BFLOAT16, FLOAT16, INT8 = 0, 1, 2, 3
ITEMSIZE = (4, 2, 2, 1)


def _host_features() -> set[str]:
    chosen = os.environ.get("NUMBA_CPU_FEATURES")
    if chosen is not None:
        return {name[1:] for name in chosen.split(",") if name.startswith("+")}
    return {name for name, is_there in llvmlite.binding.get_host_cpu_features().items() if is_there}


FEATURES = _host_features()
LANES = 16 if "avx512f" in FEATURES else 8 if "avx" in FEATURES else 4
# accumulators of a tile that leave room for its operands: 32 vector registers with AVX-512 and on Arm, else 16
HAS_MANY_REGISTERS = "avx512f" in FEATURES or "neon" in FEATURES

VF32 = ir.VectorType(F32, LANES)
VI32 = ir.VectorType(I32, LANES)


def call(bd: Any, name: str, result: Any, args: Sequence[Any]) -> Any:
    """Call an LLVM intrinsic by its full name."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    function = bd.module.globals.get(name) or ir.Function(bd.module, kind, name)
    return bd.call(function, args)


def pointer(bd: Any, address: Any) -> Any:
    return bd.inttoptr(address, BYTES)


def offset(bd: Any, where: Any, num_bytes: Any) -> Any:
    return bd.gep(where, [num_bytes if not isinstance(num_bytes, int) else I64(num_bytes)])


def load(bd: Any, where: Any, kind: Any, align: int) -> Any:
    value = bd.load(bd.bitcast(where, kind.as_pointer()))
    value.align = align
    return value


def store(bd: Any, value: Any, where: Any, align: int = 4) -> None:
    bd.store(value, bd.bitcast(where, value.type.as_pointer())).align = align


def splat(bd: Any, value: Any) -> Any:
    kind = ir.VectorType(value.type, LANES)
    empty = ir.Constant(kind, ir.Undefined)
    first = bd.insert_element(empty, value, I32(0))
    return bd.shuffle_vector(first, empty, ir.Constant(VI32, [0] * LANES))


def constant(value: float) -> Any:
    return ir.Constant(VF32, [value] * LANES)


def multiply_add(bd: Any, x: Any, y: Any, z: Any) -> Any:
    return call(bd, f"llvm.fmuladd.v{LANES}f32", VF32, [x, y, z])


def load_as_float32(bd: Any, where: Any, kind: int) -> Any:
    """One vector of stored values, widened to float32."""
    if kind == FLOAT32:
        return load(bd, where, VF32, 4)
    if kind == BFLOAT16:
        bits = bd.zext(load(bd, where, ir.VectorType(I16, LANES), 2), VI32)
        return bd.bitcast(bd.shl(bits, ir.Constant(VI32, [16] * LANES)), VF32)
    if kind == FLOAT16:
        return bd.fpext(load(bd, where, ir.VectorType(ir.HalfType(), LANES), 2), VF32)
    return bd.sitofp(bd.sext(load(bd, where, ir.VectorType(I8, LANES), 1), VI32), VF32)


def fold(bd: Any, vector: Any, combine: Any) -> Any:
    """Combine all lanes into a scalar, by halves: an order that is fixed for a width."""
    width = LANES
    while width > 1:
        width //= 2
        mask = [(lane + width) % LANES for lane in range(LANES)]
        vector = combine(vector, bd.shuffle_vector(vector, vector, ir.Constant(VI32, mask)))
    return bd.extract_element(vector, I32(0))


def maximum(bd: Any, x: Any, y: Any) -> Any:
    return bd.select(bd.fcmp_ordered(">", x, y), x, y)


def exponential(bd: Any, x: Any) -> Any:
    """exp of each lane within 2 ulp; 0 below -87.3 (and for -inf); NaN stays NaN. Coefficients: Cephes expf."""
    is_tiny = bd.fcmp_ordered("<", x, constant(-87.3))
    x = bd.select(is_tiny, constant(-87.3), x)
    x = bd.select(bd.fcmp_ordered(">", x, constant(88.3)), constant(88.3), x)
    n = call(bd, f"llvm.rint.v{LANES}f32", VF32, [bd.fmul(x, constant(1.44269504088896341))])
    r = multiply_add(bd, n, constant(-0.693359375), x)
    r = multiply_add(bd, n, constant(2.12194440e-4), r)
    p = constant(1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = multiply_add(bd, p, r, constant(c))
    y = bd.fadd(multiply_add(bd, p, bd.fmul(r, r), r), constant(1.0))
    exponent = bd.add(bd.fptosi(n, VI32), ir.Constant(VI32, [127] * LANES))
    power = bd.bitcast(bd.shl(exponent, ir.Constant(VI32, [23] * LANES)), VF32)
    return bd.select(is_tiny, constant(0.0), bd.fmul(y, power))


def count_up(bd: Any, count: Any, carried: Sequence[Any], body: Any) -> list[Any]:
    """Emit `for i in range(count)` (at least one turn): body(i, values) -> next values. Returns the last ones."""
    entry, loop = bd.block, bd.append_basic_block("loop")
    bd.branch(loop)
    bd.position_at_end(loop)
    i = bd.phi(I64)
    i.add_incoming(I64(0), entry)
    values = [bd.phi(value.type) for value in carried]
    for phi, value in zip(values, carried, strict=True):
        phi.add_incoming(value, entry)
    following = body(i, values)
    after = bd.add(i, I64(1))
    i.add_incoming(after, bd.block)
    for phi, value in zip(values, following, strict=True):
        phi.add_incoming(value, bd.block)
    done = bd.append_basic_block("done")
    bd.cbranch(bd.icmp_signed("<", after, count), loop, done)
    bd.position_at_end(done)
    return list(following)


def _at(pointee: Any) -> Any:
    @intrinsic
    def at(_: Any, address: Any) -> Any:
        def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
            return bd.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(pointee)(types.int64), codegen

    return at


# an address as something to index
float32_at, int32_at, int64_at = _at(types.float32), _at(types.int32), _at(types.int64)
int16_at, uint16_at = _at(types.int16), _at(types.uint16)
int8_at, uint8_at = _at(types.int8), _at(types.uint8)


@intrinsic
def fetch_add(_: Any, address: Any, value: Any) -> Any:
    """Take a number that no other worker gets."""

    def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        return bd.atomic_rmw("add", bd.inttoptr(args[0], I64.as_pointer()), args[1], "monotonic")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def float_of(_: Any, bits: Any) -> Any:
    """The float64 whose bits travelled in an int64 argument."""

    def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        return bd.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def bits_of_float32(_: Any, value: Any) -> Any:
    def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        return bd.bitcast(args[0], I32)

    return types.int32(types.float32), codegen


@intrinsic
def float32_of_bits(_: Any, bits: Any) -> Any:
    def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        return bd.bitcast(args[0], F32)

    return types.float32(types.int32), codegen


@njit(fastmath={"contract", "nsz"}, inline="always")
def exp_float32(x: Any) -> Any:
    """The scalar twin of `exponential`, for loops that LLVM vectorises by itself; infinite above 88.3."""
    f = types.float32
    c = f(-87.3) if x < f(-87.3) else x
    c = f(88.3) if c > f(88.3) else c
    n = np.rint(c * f(1.44269504088896341))
    r = (c - n * f(0.693359375)) + n * f(2.12194440e-4)
    p = f(1.9875691500e-4)
    p = p * r + f(1.3981999507e-3)
    p = p * r + f(8.3334519073e-3)
    p = p * r + f(4.1665795894e-2)
    p = p * r + f(1.6666665459e-1)
    p = p * r + f(5.0000001201e-1)
    y = (p * (r * r) + r) + f(1.0)
    power = float32_of_bits((types.int32(n) + types.int32(127)) << types.int32(23))
    return f(np.inf) if x > f(88.3) else y * power


@intrinsic
def half_bits(_: Any, value: Any) -> Any:
    """The float16 nearest to a float32, as its bits."""

    def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        return bd.bitcast(bd.fptrunc(args[0], ir.HalfType()), I16)

    return types.uint16(types.float32), codegen


@intrinsic(prefer_literal=True)
def widened(_: Any, kind: Any, address: Any) -> Any:
    """The float32 of one value stored at an address as `kind` (not INT8)."""
    if not isinstance(kind, types.IntegerLiteral):
        return None
    stored_as = int(kind.literal_value)

    def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        where = pointer(bd, args[1])
        if stored_as == FLOAT32:
            return load(bd, where, F32, 4)
        if stored_as == FLOAT16:
            return bd.fpext(load(bd, where, ir.HalfType(), 2), F32)
        return bd.bitcast(bd.shl(bd.zext(load(bd, where, I16, 2), I32), I32(16)), F32)

    return types.float32(kind, types.int64), codegen


def emit_prefetch(bd: Any, where: Any, *, to_write: bool = False) -> None:
    """Ask for the cache line at a pointer: into the second-level cache, or into the first to be written."""
    name = "llvm.prefetch.p0"
    kind = ir.FunctionType(ir.VoidType(), [where.type, I32, I32, I32])
    function = bd.module.globals.get(name) or ir.Function(bd.module, kind, name)
    bd.call(function, [where, I32(int(to_write)), I32(3 if to_write else 2), I32(1)])


def _prefetch(to_write: bool) -> Any:
    @intrinsic
    def ask(_: Any, address: Any) -> Any:
        def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
            emit_prefetch(bd, pointer(bd, args[0]), to_write=to_write)
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    return ask


prefetch, prefetch_to_write = _prefetch(False), _prefetch(True)


@intrinsic
def call_kernel(_: Any, function: Any, memory: Any) -> Any:
    """Call a kernel by its address, with the address of its arguments."""

    def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I64])
        bd.call(bd.inttoptr(args[0], kind.as_pointer()), [args[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def call_nothing(_: Any, function: Any) -> Any:
    """Call a function without arguments by its address."""

    def codegen(context: Any, bd: Any, signature: Any, args: Any) -> Any:
        bd.call(bd.inttoptr(args[0], ir.FunctionType(ir.VoidType(), []).as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), codegen
