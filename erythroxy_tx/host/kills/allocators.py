"""The words of allocators that have no more memory to give: an exception, which a program can catch, and no kill."""

import re

from erythroxy_tx.host.kills.kill import Sign
from erythroxy_tx.host.kills.records import Record

_REFUSED = (
    (re.compile(r"RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate)"), "XLA"),
    (re.compile(r"CUDA_ERROR_OUT_OF_MEMORY|CUDA out of memory|cudaErrorMemoryAllocation"), "CUDA"),
    (re.compile(r"_ArrayMemoryError: |MemoryError: Unable to allocate "), "numpy"),
    (re.compile(r"^MemoryError(?::|$)"), "Python"),
)

_OF_THE_HOST = ("numpy", "Python")


def is_of_the_host(sign: Sign) -> bool:
    """Whether it was the host's memory that was refused."""
    return sign.kind == "allocator" and sign.text.startswith(_OF_THE_HOST)


def read(record: Record) -> Sign | None:
    """The allocator that refused memory; None for anything else."""
    for words, name in _REFUSED:
        if words.search(record.said):
            return Sign("allocator", f"{name} was refused memory: an exception, not a kill", record.line)
    return None
