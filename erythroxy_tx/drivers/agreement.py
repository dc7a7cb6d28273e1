"""Whether the processes of a mesh are about to run the same program on as many rows: asked before the first collective,
in which those that differ would wait for each other for ever.

Each process writes a word into the store that they share, waits at a barrier, and reads the words of all. A barrier is
passed by every process or by none, also by one that comes late, and each comes to it once a turn. So all of them go on
or all of them refuse, and the next turn is the same one for all. After a barrier that was not passed they use another,
which one that comes late to the first does not disturb. Not here: what the words say.
"""

import collections
import contextlib
import hashlib
import json
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from erythroxy_tx import _compat
from erythroxy_tx.errors import StallError

Word = dict[str, str]

_WAIT = 300.0  # seconds
_AT_ONCE = 0.001  # seconds
_TURNS: collections.Counter[Any] = collections.Counter()  # that were taken, by store and processes
_STALLS: collections.Counter[Any] = collections.Counter()  # barriers that were not passed
_KNOWN = "_known_to_all_processes"  # of an error, that the others fail as well


def agree(mesh: Mesh, told: Callable[[], Word], label: str, wait: float | None = None) -> None:
    """Go on only if the other processes of a mesh are about to run the same.

    **Arguments:** `told`: what has to be the same, by name; it is asked only where there are other processes. `wait`:
    seconds.

    **Raises:** `ValueError` if one runs something else, or failed before it came here; `StallError` if one does not
    come.
    """
    if not _others(mesh):
        return
    me, own = jax.process_index(), told()
    for process, word in told_by_all(mesh, own, label, wait).items():
        if differing := [name for name in own if own[name] != word[name]]:
            name = differing[0]
            raise _known(
                ValueError(
                    f"{label} got another {name} in process {me} ({own[name]}) than in process {process} "
                    f"({word[name]}). Expected the same in every process. Fix: make the same call everywhere, with "
                    "the same constants, arguments without rows, chunk size and true number of rows."
                )
            )


def told_by_all(mesh: Mesh, own: Word, label: str, wait: float | None = None) -> dict[int, Word]:
    """What each process of a mesh tells, by its number.

    **Raises:** `ValueError` if one failed before it came here, or tells something else; `StallError` if one does not
    come.
    """
    me = jax.process_index()
    if not _others(mesh):
        return {me: own}
    wait = _WAIT if wait is None else wait
    words, stalled = _exchanged(mesh, own, wait)
    for process, word in words.items():
        if "failed" in word:
            raise _known(
                ValueError(
                    f"{label} got an error in process {process}, which cannot come to this call: {word['failed']}. "
                    "Expected every process to make the same calls. Fix: the error there."
                )
            )
    missing = [process for process in _processes(mesh) if process not in words]
    if not missing and stalled is None:
        for process, word in words.items():
            if word.keys() != own.keys():
                raise _known(
                    ValueError(
                        f"{label} in process {me} met another call in process {process}: {', '.join(own)} here, "
                        f"{', '.join(word)} there. Expected every process to make the same calls. Fix: the one that "
                        "differs."
                    )
                )
        return words
    others = ", ".join(str(process) for process in missing or _processes(mesh) if process != me)
    raise _known(
        StallError(
            f"{label} in process {me} did not meet process {others}: the first one waits {wait:g} s. Expected every "
            "process of the mesh to make the same calls. Fix: look at what each does; then make the call again in all."
        )
    ) from stalled


@contextlib.contextmanager
def announced(mesh: Mesh, label: str) -> Iterator[None]:
    """Let the other processes know of an error in here, before an `agree` at which they wait. They fail at it as well,
    so that the next call is the same one for all.
    """
    try:
        yield
    except BaseException as error:
        if _others(mesh) and not hasattr(error, _KNOWN):
            _exchanged(mesh, {"failed": f"{label}: {type(error).__name__}: {str(error)[:500]}"}, _AT_ONCE)
            _known(error)
        raise


def digest(values: Iterable[Any]) -> str:
    """What tells values from others, of those that this process has as a whole."""
    found = hashlib.sha256()
    for value in values:
        if value is None or isinstance(value, jax.core.Tracer) or not getattr(value, "is_fully_addressable", True):
            continue
        if hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)  # noqa: PLW2901
        with jax.transfer_guard("allow"):
            host = np.asarray(value)
        found.update(f"{host.dtype}{host.shape}".encode())
        found.update(host.tobytes())
    return found.hexdigest()[:16]


def digest_of(*programs: Any) -> str:
    """What tells the text of programs from others, whatever objects they hold."""
    text = re.sub("0x[0-9a-f]+", "", " ".join(map(str, programs)))
    return digest([np.frombuffer(text.encode(), np.uint8)])


def _exchanged(mesh: Mesh, own: Word, wait: float) -> tuple[dict[int, Word], Exception | None]:
    """The words of this turn, by process; and what happened at the barrier, if they did not pass it."""
    store, processes = _compat.store_of_processes(), _processes(mesh)
    us = store, processes
    _TURNS[us] += 1
    turn, name = _TURNS[us], f"erythroxy_tx/{','.join(map(str, processes))}"
    place = f"{name}/{turn % 2}"  # written over in two turns, when all have read it
    store.key_value_set(f"{place}/{jax.process_index()}", json.dumps([turn, own]), allow_overwrite=True)
    stalled = None
    try:
        store.wait_at_barrier(f"{name}/{_STALLS[us]}", max(1, int(wait * 1000)), process_ids=list(processes))
    except jax.errors.JaxRuntimeError as error:
        _STALLS[us] += 1
        stalled = error
    found = {int(key.rpartition("/")[2]): json.loads(word) for key, word in store.key_value_dir_get(place)}
    return {process: word for process, (at, word) in sorted(found.items()) if at == turn}, stalled


def _processes(mesh: Mesh) -> tuple[int, ...]:
    return tuple(sorted({d.process_index for d in mesh.devices.flat}))


def _others(mesh: Mesh) -> bool:
    return _compat.store_of_processes() is not None and len(_processes(mesh)) > 1


def _known(error: Any) -> Any:
    setattr(error, _KNOWN, True)
    return error
