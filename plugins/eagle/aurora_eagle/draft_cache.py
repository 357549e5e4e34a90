"""Keys and values that the serving drafter keeps of each request.

A cache holds rows that the target has computed. Rows that the drafter feeds itself while it drafts
lie behind them and are overwritten by the target's next time, whether their tokens were accepted
or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from aurora_core.interfaces import DraftRequest

MIN_CAPACITY = 256
"""Rows that a new cache has room for; it doubles when it is full."""


@dataclass(slots=True)
class Cache:
    """Keys and values of one request, [capacity, kv_heads, head_dim] each."""

    keys: Tensor
    values: Tensor
    base: int
    """Position of the first row."""
    length: int
    """Rows computed by the target."""


class Caches:
    """The caches of all requests that a drafter knows.

    Args:
        allocate: capacity -> keys and values of a new cache.
    """

    def __init__(self, allocate: Callable[[int], tuple[Tensor, Tensor]]) -> None:
        self._allocate = allocate
        self._of_request: dict[str, Cache] = {}

    def open(self, request: DraftRequest, num_drafted: int) -> Cache:
        """Return the request's cache, cut to the rows before `request.start`.

        A request that is unknown or out of step with the target begins with the window given.

        Args:
            request: its new rows find room.
            num_drafted: rows that find room behind them.
        """
        cache = self._of_request.get(request.request_id)
        if cache is None or not cache.base <= request.start <= cache.base + cache.length:
            cache = Cache(*self._allocate(MIN_CAPACITY), request.start, 0)
            self._of_request[request.request_id] = cache
        cache.length = request.start - cache.base
        wanted = cache.length + len(request.token_ids) - 1 + num_drafted
        if wanted > len(cache.keys):
            keys, values = self._allocate(max(wanted, 2 * len(cache.keys)))
            keys[: cache.length] = cache.keys[: cache.length]
            values[: cache.length] = cache.values[: cache.length]
            cache.keys, cache.values = keys, values
        return cache

    def forget(self, request_id: str) -> None:
        """Drop a request's cache, if there is one."""
        self._of_request.pop(request_id, None)
