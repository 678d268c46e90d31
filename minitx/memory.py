"""Memory that stays: telling the allocator to keep what training frees, because it will be asked for again a moment later.

A training step makes and drops the same large arrays again and again. By default glibc hands such blocks back to the kernel at
once, and the kernel gives back fresh pages, which it has to fill with zeros first, one page fault after the other. On a small
Transformer that is a quarter of the step.
"""

from __future__ import annotations

import ctypes

M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD = -3, -1, -2      # from malloc.h


def keep_freed_memory() -> bool:
    """Keep freed memory in this process, for good. Whether the C library knows how: glibc does, others are left as they are."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return all([mallopt(M_MMAP_THRESHOLD, 1 << 30)              # serve blocks of up to 1 GiB from the heap,
                or mallopt(M_MMAP_THRESHOLD, 32 << 20),         # or 32 MiB, the most that an older glibc takes,
                mallopt(M_TRIM_THRESHOLD, 2**31 - 1),           # and do not give the end of the heap back
                mallopt(M_TOP_PAD, 64 << 20)])                  # ask the kernel for 64 MiB more than is needed
