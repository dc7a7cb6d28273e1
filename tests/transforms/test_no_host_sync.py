"""`no_host_sync` as a decorator, a block and a method, and programs that people reported as slow since they read.
Which ways of reading are seen is in `tests/guards/`.

| reported | where |
|---|---|
| a loss is read at every step, by a bar, a log, an `if` | elegy issue 141, flowMC issue 31, torchtune pull 522 |
| a numpy data set goes up again at every step | DESC pull 1051, jax issue 16602 |
| slices, indices and Python numbers outside of jit are uploads | jax issues 26425 and 16002 |
"""

import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import erythroxy_tx as tx
from erythroxy_tx.transforms import no_host_sync


def fresh() -> jax.Array:
    return jnp.square(jnp.float32(1.5))


@tx.no_host_sync
def pickled(x):
    """A docstring."""
    return x + 1


def test_it_looks_like_the_function() -> None:
    assert (pickled.__name__, pickled.__doc__) == ("pickled", "A docstring.")
    assert pickle.loads(pickle.dumps(pickled)) == pickled
    assert [t.name for t in tx.stack(pickled)] == ["tx.no_host_sync"]


@pytest.mark.parametrize(
    "make",
    [tx.no_host_sync, tx.no_host_sync(), tx.no_host_sync(allow=0), lambda f: tx.no_host_sync(f, allow=0)],
    ids=["bare", "called", "allow", "both"],
)
def test_each_way_to_put_it_on(make: Callable) -> None:
    f = make(lambda x, read: float(x) if read else x)
    x = fresh()
    assert f(x, read=False) is x
    with pytest.raises(tx.HostSyncError, match=r"tx.no_host_sync\(.*\): float of f32\[\], 4 bytes, at .*test_no"):
        f(x, read=True)
    assert f(x, read=False) is x


def test_each_call_has_its_own_reads() -> None:
    f = tx.no_host_sync(allow=2)(lambda *values: [float(v) for v in values])
    for _ in range(2):
        assert f(fresh(), fresh()) == [2.25, 2.25]
    with pytest.raises(tx.HostSyncError, match="at most 2 reads"):
        f(fresh(), fresh(), fresh())


def test_methods_and_jitted_functions() -> None:
    class Model:
        @tx.no_host_sync
        def loss(self, x):
            return float(x)

    with pytest.raises(tx.HostSyncError):
        Model().loss(fresh())
    step = tx.no_host_sync(jax.jit(lambda x: x * 2))
    with tx.compiles() as seen:
        assert float(step(fresh())) == 4.5
        before = seen.backend_compiles
        step(fresh())
    assert seen.backend_compiles == before
    assert "stablehlo" in step.lower(fresh()).as_text()


@pytest.mark.parametrize("allow", [-1, 1.5, True, "2"])
def test_allow_is_a_number(allow: Any) -> None:
    with pytest.raises(ValueError, match="Expected a number of reads"):
        tx.no_host_sync(allow=allow)


def test_it_is_refused_inside_of_a_trace() -> None:
    f = tx.no_host_sync(lambda x: x + 1)
    with pytest.raises(tx.TransformOrderError, match=r"tx.no_host_sync\(jax.jit\(f\)\)"):
        jax.jit(f)(fresh())
    with pytest.raises(tx.TransformOrderError):
        jax.eval_shape(lambda x: tx.no_host_sync().__enter__() or x, fresh())
    assert f(1) == 2
    assert jax.grad(f)(2.0) == 1


def test_generators_and_coroutines_are_refused() -> None:
    with pytest.raises(TypeError, match=r"with tx\.no_host_sync"):
        tx.no_host_sync(lambda: (yield))

    async def train() -> None:
        pass

    with pytest.raises(TypeError, match="after the call returned"):
        tx.no_host_sync(train)
    late = tx.no_host_sync(lambda: (i for i in range(3)))
    with pytest.raises(TypeError, match="after the call returned"):
        late()


def test_a_block_is_its_own() -> None:
    block = tx.no_host_sync()
    with block, pytest.raises(RuntimeError, match="open already"), block:
        pass
    with block:
        pass


def test_errors_of_the_program_come_first() -> None:
    with pytest.raises(KeyError), tx.no_host_sync():
        raise KeyError("mine")


def test_a_copy_that_only_jax_sees_is_told_as_ours() -> None:
    """On a GPU the guard of JAX's refuses what goes past what is watched."""
    said = "INVALID_ARGUMENT: Disallowed device-to-host transfer: shape=(3), dtype=F32"
    with pytest.raises(tx.HostSyncError, match="JAX copied an array") as raised, tx.no_host_sync():
        raise jax.errors.JaxRuntimeError(said)
    assert isinstance(raised.value.__cause__, jax.errors.JaxRuntimeError)


def test_the_guard_of_jax_is_set_and_given_back() -> None:
    levels: list[Any] = []

    def level() -> Any:
        return jax.config.jax_transfer_guard_device_to_host

    class Spy(no_host_sync._NoReads):
        def after(self, read: Any) -> None:
            levels.append(level())
            super().after(read)

        def reading(self) -> Any:
            levels.append(level())
            return super().reading()

    with jax.transfer_guard_device_to_host("log"):
        with Spy("here", allow=1):
            assert level() == "disallow"
            float(fresh())
        assert level() == "log"
    assert levels == ["disallow", "disallow"]  # outside of `reading`


@jax.jit
def step(w):
    return w * 0.99, (w * w).sum()


READ = {
    "float": lambda v, i: float(v),
    "if": lambda v, i: bool(v > 0),
    "f-string": lambda v, i: f"{v:.3f}",
    "item": lambda v, i: v.item(),
    "asarray": lambda v, i: np.asarray(v),
    "np.exp": lambda v, i: np.exp(-v),
    "mask": lambda v, i: jnp.stack([v, v])[jnp.stack([v, v]) > 0],
    "twice": lambda v, i: (f"{v:.3f}", float(v)),
    "every tenth": lambda v, i: float(v) if i % 10 == 9 else None,
}


@pytest.mark.parametrize("read", READ)
def test_a_loss_that_is_read_at_every_step(read: str) -> None:
    def loop(steps: int = 20) -> None:
        w = jnp.ones(100)
        for i in range(steps):
            w, loss = step(w)
            READ[read](loss, i)

    loop()
    right = 2 if read == "every tenth" else 20
    with tx.host_syncs() as seen:
        loop()
    assert seen.count == right
    with tx.no_host_sync(allow=right):
        loop()
    with pytest.raises(tx.HostSyncError), tx.no_host_sync(allow=right - 1):
        loop()


def uploads(f: Callable, *args: Any, calls: int = 10) -> int:
    count = 0
    for _ in range(calls):
        try:
            with jax.transfer_guard_host_to_device("disallow"):
                f(*args)
        except jax.errors.JaxRuntimeError as error:
            count += "Disallowed host-to-device" in str(error)
    return count


def test_a_data_set_that_goes_up_at_every_step() -> None:
    def loss(data):
        return (data["x"] * data["scale"]).sum()

    host = {"x": np.ones(1000, np.float32), "scale": 2.0}
    plain, resident = jax.jit(loss), tx.vram_resident(loss)
    assert plain(host) == resident(host) == 2000
    assert uploads(plain, host) == 10
    assert uploads(resident, host) == 0
    assert [(r.name, r.nbytes) for r in resident.resident()] == [("data['x']", 4000)]
    with tx.no_host_sync():
        for _ in range(10):
            resident(host)


EAGER = {
    "slice": lambda a: a[1:, :2],
    "index": lambda a: a[1],
    "+ 1.0": lambda a: a + 1.0,
    "zeros": lambda a: jnp.zeros(()),
    "where": lambda a: jnp.where(a > 0, a, 0.0),
}


@pytest.mark.parametrize("name", EAGER)
def test_glue_outside_of_jit_uploads_scalars_and_resident_functions_do_not(name: str) -> None:
    a = jnp.ones((3, 4))
    glue = EAGER[name]
    glue(a)
    assert uploads(glue, a, calls=2) == 2
    resident = tx.vram_resident(glue)
    resident(a)
    assert uploads(resident, a, calls=2) == 0
    with tx.no_host_sync():
        glue(a)
