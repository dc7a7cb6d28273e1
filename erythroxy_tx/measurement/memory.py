"""The peak of a device. Not here: the account of a program, which is `core.compiled`, and host memory,
which is `host.memory`.
"""

from typing import Any

import jax

from erythroxy_tx.units import format_bytes


class DevicePeak:
    """The most bytes that one device of the default backend holds from now on.

    The mark that a device keeps cannot be set back. It is evidence only if it rises.
    """

    def __init__(self) -> None:
        self._before = _marks()

    def read(self) -> tuple[int | None, str]:
        """**Returns:** bytes, or None where they cannot be known, and a remark that says what they are."""
        marks = _marks()
        if not marks:
            return None, f"not reported by {jax.default_backend()}"
        risen = [mark for device, mark in marks.items() if mark > self._before.get(device, 0)]
        if risen:
            return max(risen), "in use at once on one device"
        return (
            None,
            f"hidden by an earlier peak of {format_bytes(max(marks.values()))}; isolate=True measures afresh",
        )


def _marks() -> dict[Any, int]:
    stats = {device: device.memory_stats() or {} for device in jax.local_devices()}
    key = "peak_bytes_in_use"
    return {device: int(found[key]) for device, found in stats.items() if key in found}
