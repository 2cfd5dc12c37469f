"""A seeded order of any number of things that needs no memory: the place of each is computed when it is asked for."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from .documents import DataError

_ROUNDS = 8
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Permutation:
    """A bijection of ``0 .. size-1``, drawn by a key.

    A Feistel network with 8 rounds permutes the numbers of 2w bits, the fewest that hold ``size``; what falls outside is sent through
    again until it is inside ("cycle walking", Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002), on average less than
    four times. The round function is SplitMix64's finaliser. It shuffles; it does not hide anything.
    """

    def __init__(self, size: int, key: str) -> None:
        """Draw it.

        Raises:
            DataError: a size below 1 or above 2^62.
        """
        if not 1 <= size <= 1 << 62:
            raise DataError(f"a permutation of {size} numbers; give 1 to 2^62")
        self.size = size
        half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._half_bits, self._mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
        keys = hashlib.sha256(key.encode()).digest() + hashlib.sha256(b"2" + key.encode()).digest()
        self._keys = np.frombuffer(keys, dtype="<u8")[:_ROUNDS].astype(np.uint64)

    def __call__(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each of the numbers is sent.

        Raises:
            DataError: a number outside.
        """
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.size:
            raise DataError(f"numbers {numbers.min()} to {numbers.max()} of {self.size}; ask for 0 to {self.size - 1}")
        sent = self._once(numbers.astype(np.uint64))
        while len(outside := np.flatnonzero(sent >= np.uint64(self.size))):
            sent[outside] = self._once(sent[outside])
        return sent.astype(np.int64)

    def _once(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = numbers >> self._half_bits, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right ^ key) & self._mask)
        return (left << self._half_bits) | right


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))
