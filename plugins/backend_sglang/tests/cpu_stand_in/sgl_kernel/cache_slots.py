"""Which slots of the cache hold the rows of which request.

`slot_table[table_row, position]` names the slot of a position. Of every list below, the entries of
the requests follow each other.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    table_rows: Tensor,
    slot_table: Tensor,
    starts: Tensor,
    ends: Tensor,
    slots: Tensor,
    table_width: int,
) -> None:
    """Write the slots of positions [start, end) of every request into the table."""
    done = 0
    for row, start, end in _spans(table_rows, starts, ends):
        slot_table[row, start:end] = slots[done : done + end - start].to(slot_table.dtype)
        done += end - start


def assign_extend_cache_locs_cpu(
    table_rows: Tensor,
    slot_table: Tensor,
    starts: Tensor,
    ends: Tensor,
    slots: Tensor,
    table_width: int,
) -> None:
    """Read the slots of positions [start, end) of every request from the table into `slots`."""
    done = 0
    for row, start, end in _spans(table_rows, starts, ends):
        slots[done : done + end - start] = slot_table[row, start:end].to(slots.dtype)
        done += end - start


def assign_draft_cache_locs_contiguous_cpu(
    table_rows: Tensor,
    slot_table: Tensor,
    lengths: Tensor,
    slots: Tensor,
    table_width: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the slots right after every request's own, `topk * num_steps` each, into `slots`."""
    count = topk * num_steps
    for index, (row, length) in enumerate(_pairs(table_rows, lengths)):
        found = slot_table[row, length : length + count]
        slots[index * count : (index + 1) * count] = found.to(slots.dtype)


def build_draft_decode_metadata_cpu(
    slot_table: Tensor,
    table_rows: Tensor,
    lengths: Tensor,
    topk: int,
    num_steps: int,
    table_width: int,
) -> Tensor:
    """Return a table with one row for each branch of each request.

    A branch sees the request's own slots and the `num_steps` of its own after them.
    """
    branches = torch.zeros(len(lengths) * topk, table_width, dtype=slot_table.dtype)
    for index, (row, length) in enumerate(_pairs(table_rows, lengths)):
        for branch in range(topk):
            own = length + branch * num_steps
            target = branches[index * topk + branch]
            target[:length] = slot_table[row, :length]
            target[length : length + num_steps] = slot_table[row, own : own + num_steps]
    return branches


def copy_all_layer_kv_cache_cpu(
    addresses: Tensor, row_sizes: Tensor, to_slots: Tensor, from_slots: Tensor
) -> None:
    """Copy slots within every layer's cache, which are given by address and bytes per slot."""
    moves = list(zip(to_slots.tolist(), from_slots.tolist(), strict=True))
    for address, size in zip(addresses.tolist(), row_sizes.tolist(), strict=True):
        # All are read before any is written: the two sets of slots overlap.
        rows = [ctypes.string_at(address + source * size, size) for _, source in moves]
        for (destination, _), row in zip(moves, rows, strict=True):
            ctypes.memmove(address + destination * size, row, size)


def fill_accept_out_cache_loc_cpu(
    accepted_rows: Tensor, slots: Tensor, accepted_slots: Tensor
) -> None:
    """Write the slots of the accepted rows, of those that are not -1, one after the other."""
    rows = accepted_rows.view(-1)
    rows = rows[rows > -1].long()
    accepted_slots[: len(rows)] = slots[rows].to(accepted_slots.dtype)


def _pairs(table_rows: Tensor, lengths: Tensor) -> list[tuple[int, int]]:
    return list(zip(table_rows.tolist(), lengths.tolist(), strict=True))


def _spans(table_rows: Tensor, starts: Tensor, ends: Tensor) -> list[tuple[int, int, int]]:
    return list(zip(table_rows.tolist(), starts.tolist(), ends.tolist(), strict=True))
