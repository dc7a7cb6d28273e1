"""Guards that are wrong on purpose: the table of situations must tell each of them from the right one."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from erythroxy_tx.compiling import changes
from erythroxy_tx.compiling import events
from erythroxy_tx.compiling import scope
from erythroxy_tx.compiling import seen
from erythroxy_tx.transforms import assert_relocation
from erythroxy_tx.transforms import no_recompile
from tests.compiling.situations import ALL
from tests.compiling.test_situations import as_decorator
from tests.compiling.test_situations import judge
from tests.compiling.test_situations import of

Patch = Callable[[pytest.MonkeyPatch], None]
FAULTS: dict[str, tuple[Patch, str]] = {}  # and the situation that shows it


def fault(name: str, shown_by: str) -> Callable[[Patch], Patch]:
    def add(patch: Patch) -> Patch:
        FAULTS[name] = patch, shown_by
        return patch

    return add


def only(*stages: str) -> Patch:
    """Other stages are not judged."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = events._judge
        monkeypatch.setattr(events, "_judge", lambda stage, *rest: right(stage, *rest) if stage in stages else None)

    return patch


FAULTS["only traces are seen, not compiles"] = only("trace"), "a_sharding"
FAULTS["only compiles are seen, not traces"] = only("compile"), "a_trace_without_a_compile"


@fault("what jax itself defines is left out", "an_eager_cond")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    right = events._judge
    own = ("tanh", "cond", "stage", "convert_element_type")
    monkeypatch.setattr(events, "_judge", lambda stage, name, call: None if name in own else right(stage, name, call))


@fault("threads that are started inside are not watched", "a_shape_in_a_thread")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(dict):
        def get(self, thread, default=None):
            return default

    monkeypatch.setattr(scope, "_STARTED_IN", Forgetful())


@fault("every thread is watched", "something_else_in_a_thread_of_somebody_else")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("erythroxy_tx._compat.in_callback_thread", lambda: True)


@fault("an error in a callback stays there", "a_callback_that_compiles")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(no_recompile, "raise_stopped", lambda key, error: None)


@fault("a check of the library's own is the user's compile", "a_check_against_the_reference")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assert_relocation, "own_work", contextlib.nullcontext)


@fault("a new bucket is a retrace", "a_new_bucket")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("erythroxy_tx.transforms.pad_static.warming", lambda warm, key: contextlib.nullcontext())


@fault("what was cleared is a retrace", "all_caches_cleared")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_was_cleared", lambda armed, earlier, now, call: False)


@fault("after clearing everything may compile", "all_caches_cleared_and_another_shape")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        events, "_was_cleared", lambda armed, earlier, now, call: earlier and earlier[0].generation < now.generation
    )


@fault("a program may compile again and again", "its_own_cache_cleared")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        events,
        "_was_cleared",
        lambda armed, earlier, now, call: any(not changes.changes(seen, now) for seen in earlier),
    )


@fault("the warm-up never ends", "a_shape")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope.Scope, "armed", False)


@fault("nothing is remembered", "a_shape")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events.HISTORY, "of", lambda fn: [])


@fault("the oldest call is the closest", "a_shape_told_from_the_closest_call")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "erythroxy_tx.compiling.reason.closest",
        lambda earlier, now: (earlier[-1], changes.changes(earlier[-1], now)) if earlier else None,
    )


def blind_to(**blank: Any) -> Patch:
    """Something of a leaf is not looked at."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = seen._leaf

        def leaf(value: Any, filtered: bool) -> Any:
            found = right(value, filtered)
            return dataclasses.replace(found, **blank) if isinstance(found, seen.Traced) else found

        monkeypatch.setattr(seen, "_leaf", leaf)

    return patch


FAULTS["where an array is, is not looked at"] = blind_to(place=""), "a_sharding"
FAULTS["weak types are not looked at"] = blind_to(weak=False), "a_weak_type"
FAULTS["shapes are not looked at"] = blind_to(shape=()), "a_shape"
FAULTS["dtypes are not looked at"] = blind_to(dtype=""), "a_dtype"


@fault("equal static values of two types are one", "a_static_type")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "_fixed", lambda value: seen.Fixed("…", "…", hash(value), ""))


@fault("aux data is not looked at", "aux_data")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen.Fixed, "__eq__", lambda self, other: True)


def blank(part: str) -> Patch:
    """One kind of change is never found."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(changes, part, lambda before, after: iter(()))

    return patch


FAULTS["structures are not compared"] = blank("_of_structure"), "a_key_more"
FAULTS["keywords are as good as positions"] = blank("_of_passing"), "a_keyword"
FAULTS["options of jit and transforms are not compared"] = blank("_of_jit"), "a_donation"
FAULTS["settings are not compared"] = blank("_of_settings"), "x64"
FAULTS["functions are told by their line alone"] = blank("_of_function"), "a_lambda_made_anew"


@pytest.mark.sampled(0.5)
@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_guard_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, shown_by = FAULTS[name]
    [situation] = [each for each in ALL if each.name == shown_by]
    patch(monkeypatch)
    try:
        judge(situation, of(situation, as_decorator))
    except Exception:  # noqa: BLE001  # a wrong verdict, or an error of another type
        return
    pytest.fail(f"{shown_by} does not show it")
