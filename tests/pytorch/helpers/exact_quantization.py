# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rules of docs/numerics, element by element in Python, independent of the library.

Every operation on FP32 numbers is one operation of numpy.float32, which IEEE 754 fixes; codes are
found by searching all values of a format. Matrices are lists of rows. A result is a dictionary of
every intermediate value under the key that the pages use for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

Float = np.float32
Matrix = list[list[Any]]
Settings = dict[str, str]

LARGEST = np.finfo(np.float32).max
# Largest finite number of each input type.
LARGEST_OF = {"fp32": LARGEST, "bf16": Float(2.0**127 * (2 - 2.0**-7)), "fp16": Float(65504)}
HADAMARD_SIGNS = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]


@dataclass(frozen=True)
class MiniFloat:
    """Sign, exponent and mantissa in `bits` bits; OCP formats without their special codes."""

    bits: int
    mantissa_bits: int
    bias: int
    largest: int
    nan_code: int

    @cached_property
    def magnitudes(self) -> list[Fraction]:
        """Values of the codes 0, 1, ... up to the largest finite one."""
        found = []
        for code in range(2 ** (self.bits - 1)):
            exponent, mantissa = divmod(code, 2**self.mantissa_bits)
            steps = mantissa if exponent == 0 else mantissa + 2**self.mantissa_bits
            power = max(exponent, 1) - self.bias - self.mantissa_bits
            value = steps * Fraction(2) ** power
            if value <= self.largest:
                found.append(value)
        return found

    @property
    def sign_bit(self) -> int:
        return 2 ** (self.bits - 1)

    def encode(self, value: Float) -> int:
        """Nearest code, ties to the even one, saturating; the sign of 0 stays, that of NaN not."""
        if np.isnan(value):
            return self.nan_code
        sign = self.sign_bit if np.signbit(value) else 0
        if np.isinf(value):
            return sign + len(self.magnitudes) - 1
        wanted = abs(Fraction(float(value)))
        upper = min(bisect_left(self.magnitudes, wanted), len(self.magnitudes) - 1)
        near = (max(upper - 1, 0), upper)
        nearest = min(abs(wanted - self.magnitudes[code]) for code in near)
        ties = [code for code in near if abs(wanted - self.magnitudes[code]) == nearest]
        return sign + min(ties, key=lambda code: code % 2)

    def decode(self, code: int) -> Float:
        magnitude = code & (self.sign_bit - 1)
        value = (
            Float(self.magnitudes[magnitude])
            if magnitude < len(self.magnitudes)
            else Float(np.inf if self is E5M2 and magnitude == 0x7C else np.nan)
        )
        return -value if code & self.sign_bit else value


E4M3 = MiniFloat(8, 3, 7, 448, 0x7F)
E5M2 = MiniFloat(8, 2, 15, 57344, 0x7F)
E2M1 = MiniFloat(4, 1, 1, 6, 0x7)
FORMATS = {"e4m3": E4M3, "e5m2": E5M2}


def transposed(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix, strict=True)]


def amax_of(values: Sequence[Float]) -> Float:
    """max |x|, NaN left out; 0 of nothing."""
    return Float(max((abs(value) for value in values if not np.isnan(value)), default=0))


def mapped(function: Callable[..., Any], *matrices: Matrix) -> Matrix:
    """function of the elements at each place."""
    return [
        [function(*values) for values in zip(*rows, strict=True)]
        for rows in zip(*matrices, strict=True)
    ]


def is_usable(amax: Float) -> bool:
    return bool(np.isfinite(amax) and amax > 0)


def power_of_two_below(value: Float) -> Float:
    mantissa, exponent = np.frexp(value)
    return Float(np.ldexp(Float(0.5), exponent)) if mantissa else value


def quotient(numerator: Float, amax: Float, cap: Float) -> Float:
    """numerator / amax, or the cap where that is infinite."""
    with np.errstate(over="ignore"):
        scale = numerator / amax
    return cap if np.isinf(scale) else scale


def current_scale(amax: Float, largest_code: int, powers_of_two: bool, cap: Float) -> Float:
    if not is_usable(amax):
        return Float(1)
    scale = quotient(Float(largest_code), amax, cap)
    return power_of_two_below(scale) if powers_of_two else scale


def current_scaling(settings: Settings, matrix: Matrix) -> dict[str, Any]:
    """One scale for the whole matrix, from its own amax."""
    fmt = FORMATS[settings["format"]]
    amax = amax_of([value for row in matrix for value in row])
    scale = current_scale(amax, fmt.largest, settings["scales"] == "powers of two", LARGEST)
    return {"amax": amax, "scale": scale, **scaled_cast(matrix, scale, fmt)}


def scaled_cast(matrix: Matrix, scale: Float, fmt: MiniFloat) -> dict[str, Any]:
    """q = cast(x * scale), x' = q * (1 / scale)"""
    inverse = Float(1) / scale
    scaled = mapped(lambda x: x * scale, matrix)
    codes = mapped(fmt.encode, scaled)
    return {
        "scaled": scaled,
        "codes": codes,
        "scale_inv": inverse,
        "values": mapped(lambda code: fmt.decode(code) * inverse, codes),
    }


def delayed_cast(settings: Settings, matrix: Matrix) -> dict[str, Any]:
    """A scale known beforehand; the amax is kept for later."""
    amax = amax_of([value for row in matrix for value in row])
    return {
        **scaled_cast(matrix, Float(settings["scale"]), FORMATS[settings["format"]]),
        "amax after": max(Float(settings["amax before"]), amax),
    }


def delayed_update(settings: Settings, history: Sequence[Float]) -> dict[str, Any]:
    """The end of a step for one tensor; history[0] is the step's own amax."""
    numerator = Float(FORMATS[settings["format"]].largest) * Float(2) ** -int(settings["margin"])
    newest, scale = history[0], Float(settings["scale before"])
    if newest == 0:
        return {"amax": newest, "scale": scale, "history after": list(history)}
    rolled = [Float(0), *history[2:], newest] if len(history) > 1 else [Float(0)]
    amax = amax_of([*history[1:], newest]) if settings["algorithm"] == "max" else newest
    if is_usable(amax):
        scale = quotient(numerator, amax, LARGEST)
    return {"amax": amax, "scale": scale, "history after": rolled}


# --- one scale per block --------------------------------------------------------------------


def blocks_of(matrix: Matrix, rows: int, cols: int) -> list[list[list[Float]]]:
    """The elements of each block, clipped at the edges."""
    height, width = len(matrix), len(matrix[0])
    return [
        [
            [
                matrix[r][c]
                for r in range(top, min(top + rows, height))
                for c in range(left, min(left + cols, width))
            ]
            for left in range(0, width, cols)
        ]
        for top in range(0, height, rows)
    ]


def of_elements(blocks: Matrix, matrix: Matrix, rows: int, cols: int) -> Matrix:
    """What belongs to the block of each element."""
    return [
        [blocks[r // rows][c // cols] for c in range(len(matrix[0]))] for r in range(len(matrix))
    ]


def fp8_block_copy(settings: Settings, matrix: Matrix) -> dict[str, Any]:
    """One copy as stored: blocks of 1 x 128, or tiles of 128 x 128."""
    fmt = FORMATS[settings["format"]]
    rows, cols = (int(size) for size in settings["block"].split("x"))
    amaxes = mapped(amax_of, blocks_of(matrix, rows, cols))
    powers = settings["scales"] == "powers of two"
    cap = LARGEST_OF[settings["input type"]]
    scales = mapped(lambda amax: current_scale(amax, fmt.largest, powers, cap), amaxes)
    inverses = mapped(lambda scale: Float(1) / scale, scales)
    scaled = mapped(lambda x, s: x * s, matrix, of_elements(scales, matrix, rows, cols))
    codes = mapped(fmt.encode, scaled)
    return {
        "amax": amaxes,
        "scale": scales,
        "scaled": scaled,
        "codes": codes,
        "scale_inv": inverses,
        "values": mapped(
            lambda code, s: fmt.decode(code) * s, codes, of_elements(inverses, matrix, rows, cols)
        ),
    }


def e8m0_round_up(value: Float) -> int:
    """Code of the smallest power of two that is at least value >= 0."""
    if np.isnan(value):
        return 255
    powers = range(255)
    return next((code for code in powers if Fraction(2) ** (code - 127) >= _exact(value)), 254)


def _exact(value: Float) -> Fraction:
    return Fraction(2) ** 1000 if np.isinf(value) else Fraction(float(value))


def mxfp8_copy(settings: Settings, matrix: Matrix, columnwise: bool) -> dict[str, Any]:
    """One copy, stored as the input: blocks of 32 along the rows or the columns."""
    fmt = FORMATS[settings["format"]]
    rows, cols = (32, 32) if settings["tiles"] == "yes" else (32, 1) if columnwise else (1, 32)
    ratio = Float(1) / Float(fmt.largest)
    amaxes = mapped(amax_of, blocks_of(matrix, rows, cols))
    raw = mapped(lambda amax: amax * ratio, amaxes)
    codes_of_scales = mapped(e8m0_round_up, raw)
    scales = mapped(lambda code: Float(2.0 ** (code - 127)), codes_of_scales)
    exact = mapped(lambda code: Float(2.0 ** (127 - code)), codes_of_scales)
    scaled = mapped(lambda x, s: x * s, matrix, of_elements(exact, matrix, rows, cols))
    codes = mapped(fmt.encode, scaled)
    return {
        "amax": amaxes,
        "amax / max": raw,
        "scale code": codes_of_scales,
        "scale_inv": scales,
        "scaled": scaled,
        "codes": codes,
        "values": mapped(
            lambda code, s: fmt.decode(code) * s, codes, of_elements(scales, matrix, rows, cols)
        ),
    }


# --- NVFP4 ----------------------------------------------------------------------------------


def hadamard(group: Sequence[Float]) -> list[Float]:
    """x * diag(s) * H16 / 4 of 16 numbers, by butterflies in FP32."""
    v = [x * Float(s) for x, s in zip(group, HADAMARD_SIGNS, strict=True)]
    for distance in (1, 2, 4, 8):
        for i in range(16):
            if i & distance == 0:
                v[i], v[i + distance] = v[i] + v[i + distance], v[i] - v[i + distance]
    return [x * Float(0.25) for x in v]


def transformed(matrix: Matrix) -> Matrix:
    """Every group of 16 along the rows; the last one is filled up with zeros."""
    result = []
    for row in matrix:
        padded = [*row, *[Float(0)] * (-len(row) % 16)]
        result.append([x for i in range(0, len(padded), 16) for x in hadamard(padded[i : i + 16])])
    return result


def sum_by_halves(values: Sequence[Float]) -> Float:
    v = [*values, *[Float(0)] * (16 - len(values))]
    for half in (8, 4, 2, 1):
        v = [v[i] + v[i + half] for i in range(half)]
    return v[0]


class Nvfp4:
    """One copy as stored, under one amax (or one per row)."""

    def __init__(self, settings: Settings, matrix: Matrix) -> None:
        self.settings = settings
        self.scale_max = int(settings.get("scale max", "448"))
        self.rows = 16 if settings.get("tiles") == "yes" else 1
        self.matrix = transformed(matrix) if settings.get("hadamard") == "yes" else matrix

    def scale_of(self, amax: Float) -> Float:
        largest = Float(6) * Float(self.scale_max)
        return quotient(largest, amax, LARGEST) if is_usable(amax) else Float(1)

    def multiplier(self, code: int, scale: Float) -> Float:
        """e"""
        with np.errstate(divide="ignore", over="ignore"):
            return min(Float(1) / (E4M3.decode(code) * (Float(1) / scale)), LARGEST)

    def error(self, block: Sequence[Float], code: int, scale: Float) -> Float:
        """Of 4 over 6, in units of 1 / scale."""
        e, d = self.multiplier(code, scale), E4M3.decode(code)
        errors = [abs(E2M1.decode(E2M1.encode(x * e)) * d - x * scale) for x in block]
        squares = self.settings["4 over 6"] == "MSE"
        return sum_by_halves([error * error for error in errors] if squares else errors)

    def run(self, encode: Callable[[int, int, Float], int]) -> dict[str, Any]:
        matrix = self.matrix
        per_row = self.settings.get("row scaled") == "yes"
        row_amaxes = [amax_of(row) for row in matrix]
        amaxes = row_amaxes if per_row else [max(row_amaxes)]
        scales = [self.scale_of(amax) for amax in amaxes]
        blocks = blocks_of(matrix, self.rows, 16)
        block_amaxes = mapped(amax_of, blocks)
        of_block_rows = [[scales[r if per_row else 0]] * len(row) for r, row in enumerate(blocks)]
        result: dict[str, Any] = {"amax": amaxes, "S": scales, "block amax": block_amaxes}
        six = Float(1) / Float(6)
        codes_to_6 = mapped(lambda a, s: E4M3.encode(a * (s * six)), block_amaxes, of_block_rows)
        chosen = codes_to_6
        if "4 over 6" in self.settings:
            to_4 = mapped(
                lambda a, s: E4M3.encode(a * (s * six) * Float(1.5)), block_amaxes, of_block_rows
            )
            errors = [mapped(self.error, blocks, c, of_block_rows) for c in (codes_to_6, to_4)]
            chosen = mapped(lambda a, b, x, y: b if y < x else a, codes_to_6, to_4, *errors)
            result |= {"d to 6": mapped(E4M3.decode, codes_to_6), "error to 6": errors[0]}
            result |= {"d to 4": mapped(E4M3.decode, to_4), "error to 4": errors[1]}
        multipliers = mapped(self.multiplier, chosen, of_block_rows)
        wide = of_elements(multipliers, matrix, self.rows, 16)
        scaled = mapped(lambda x, e: x * e, matrix, wide)
        codes = [
            [encode(r, c, value) for c, value in enumerate(row)] for r, row in enumerate(scaled)
        ]
        factors = [amax / (Float(6) * Float(self.scale_max)) for amax in amaxes]
        of_rows = [[factors[r if per_row else 0]] * len(row) for r, row in enumerate(matrix)]
        d = mapped(E4M3.decode, of_elements(chosen, matrix, self.rows, 16))
        return result | {
            "transformed": matrix,
            "scale code": chosen,
            "d": mapped(E4M3.decode, chosen),
            "e": multipliers,
            "scaled": scaled,
            "codes": codes,
            "values": mapped(lambda q, s, f: E2M1.decode(q) * s * f, codes, d, of_rows),
        }


def nvfp4_copy(settings: Settings, matrix: Matrix) -> dict[str, Any]:
    """With rounding to nearest."""
    return Nvfp4(settings, matrix).run(lambda row, col, value: E2M1.encode(value))


# --- stochastic rounding --------------------------------------------------------------------


def torch_random64(seed: int) -> int:
    """The first 64 bits of torch's CPU generator after torch.manual_seed(seed): MT19937."""
    generator = np.random.MT19937()
    generator._legacy_seeding(seed)
    high, low = (int(word) for word in generator.random_raw(2))
    return high << 32 | low


def philox4x32_10(counter: Sequence[int], key: int) -> list[int]:
    """Four words of Philox4x32-10 (doi:10.1145/2063384.2063405)."""
    c0, c1, c2, c3 = counter
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            (second >> 32) ^ c1 ^ low,
            second & 0xFFFFFFFF,
            (first >> 32) ^ c3 ^ high,
            first & 0xFFFFFFFF,
        )
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def random_bits(row: int, col: int, seed: int, columnwise: bool) -> int:
    """The 16 bits of one element."""
    words = philox4x32_10([row & 0xFFFFFFFF, row >> 32, col // 8, int(columnwise)], seed)
    word = words[col % 8 // 2]
    return word >> 16 if col % 2 else word & 0xFFFF


def encode_stochastic(value: Float, random: int) -> int:
    """Up where random + k >= 2^16, k the nearest to 2^16 * (v - lower) / (upper - lower)."""
    sign = E2M1.sign_bit if np.signbit(value) else 0
    magnitudes = E2M1.magnitudes
    wanted = min(abs(Fraction(float(value))), magnitudes[-1])
    lower = max(code for code, magnitude in enumerate(magnitudes) if magnitude <= wanted)
    if magnitudes[lower] == wanted:
        return sign + lower
    step = magnitudes[lower + 1] - magnitudes[lower]
    k = round(2**16 * (wanted - magnitudes[lower]) / step)  # of a Fraction: ties to even
    return sign + lower + int(random + k >= 2**16)


def nvfp4_stochastic_copy(settings: Settings, matrix: Matrix, columnwise: bool) -> dict[str, Any]:
    """With stochastic rounding, after torch.manual_seed(settings["seed"])."""
    seed = torch_random64(int(settings["seed"]))
    drawn: list[list[int]] = []

    def encode(row: int, col: int, value: Float) -> int:
        if col == 0:
            drawn.append([])
        drawn[row].append(random_bits(row, col, seed, columnwise))
        return encode_stochastic(value, drawn[row][-1])

    return Nvfp4(settings, matrix).run(encode) | {"key": seed, "random": drawn}
