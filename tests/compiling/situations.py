"""What may or may not make JAX trace or compile again, each as a warm-up and a call after it.

`kinds` are those of the changes that the error tells (`Change.kind`); None where nothing compiles, so that nothing
may be raised. Those marked ✱ are ones that JAX's own suite of explained cache misses skips or cannot tell.
"""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import erythroxy_tx as tx


@dataclasses.dataclass(frozen=True)
class Situation:
    """`make` returns what runs while it is warm, and what runs then."""

    name: str
    make: Callable[[], tuple[Callable[[], Any], Callable[[], Any]]]
    kinds: frozenset[str] | None
    told: str  # is part of the message


ALL: list[Situation] = []
_LONG = 20  # seconds, for a thread that never comes


def again(*kinds: str, told: str = "") -> Callable[[Callable], Callable]:
    """Something is traced or compiled, because of these kinds of changes."""

    def add(make: Callable) -> Callable:
        ALL.append(Situation(make.__name__, make, frozenset(kinds), told))
        return make

    return add


def quiet(make: Callable) -> Callable:
    """Nothing that should be raised."""
    ALL.append(Situation(make.__name__, make, None, ""))
    return make


def array(n: int = 3, dtype: str = "float32") -> np.ndarray:
    """A host array: making it compiles nothing."""
    return np.arange(n).astype(dtype)


def on_device(n: int = 3, dtype: str = "float32") -> jax.Array:
    return jnp.asarray(array(n, dtype))


def jitted(**options: Any) -> Any:
    return jax.jit(lambda x, *rest: x + 1, **options)


# ---------------------------------------------------------------------- arguments


@again("shape", told="x: f32[3] → f32[4], axis 0")
def a_shape():
    f, a, b = jitted(), on_device(3), on_device(4)
    return lambda: f(a), lambda: f(b)


@again("shape", told="another rank")
def a_rank():
    f, a, b = jitted(), array(4), array(4).reshape(2, 2)
    return lambda: f(a), lambda: f(b)


@again("dtype", told="f32[3] → i32[3]")
def a_dtype():
    f, a, b = jitted(), on_device(), on_device(3, "int32")
    return lambda: f(a), lambda: f(b)


@again("weak type", told="jnp.float32(2.0)")
def a_weak_type():
    f, a = jax.jit(lambda x, s: x * s), on_device()
    return lambda: f(a, 2.0), lambda: f(a, np.float32(2.0))


@again("dtype", told="a Python int")
def an_int_for_a_float():
    f, a = jax.jit(lambda x, s: x * s), on_device()
    return lambda: f(a, 2.0), lambda: f(a, 2)


@again("shape", "dtype", "structure", told="t['c']: (not there) → f32[3]")
def several_at_once():
    f = jax.jit(lambda t: t)
    a, b, c = array(), array(4), array(3, "int32")
    return lambda: f({"a": a, "b": a}), lambda: f({"a": b, "b": c, "c": a})


@again("static", "shape")
def a_static_value_and_a_shape():  # ✱
    f, a, b = jax.jit(lambda x, n: x * n, static_argnames="n"), array(), array(4)
    return lambda: f(a, n=2), lambda: f(b, n=3)


@again("shape", told="x: f32[4] → f32[5], axis 0")
def a_shape_told_from_the_closest_call():
    f, a, b, c = jitted(), on_device(3, "int32"), on_device(4), on_device(5)
    return lambda: (f(a), f(b)), lambda: f(c)


@again(told="Nothing that can be seen differs")
def each_of_two_shapes_but_not_together():
    f, a, b = jax.jit(lambda x, y: x.sum() + y.sum()), array(), array(4)
    return lambda: (f(a, a), f(b, b)), lambda: f(a, b)


ALL[-1] = dataclasses.replace(ALL[-1], kinds=frozenset({"shape"}), told="axis 0")


# ---------------------------------------------------------------------- what is static


@again("static", told="n: 2 → 3")
def a_static_value():  # ✱
    f, a = jax.jit(lambda x, n: x * n, static_argnums=1), array()
    return lambda: f(a, 2), lambda: f(a, 3)


@again("static", told="1.0, of type float, was int")
def a_static_type():  # ✱
    f, a = jax.jit(lambda x, n: x * n, static_argnums=1), array()
    return lambda: f(a, 1), lambda: f(a, 1.0)


@again("static", told="not equal")
def a_static_object_made_anew():  # ✱
    class Config:
        pass

    f, a = jax.jit(lambda x, c: x + 1, static_argnums=1), array()
    first = Config()
    return lambda: f(a, first), lambda: f(a, Config())


@again("static", told="holds functions that are made anew")
def an_optimizer_made_anew():  # ✱
    f = jax.jit(lambda x, opt: x + 1, static_argnames="opt")
    a, first = array(), optax.adam(1e-3)
    return lambda: f(a, opt=first), lambda: f(a, opt=optax.adam(1e-3))


@again("function", told="make it once")
def a_lambda_made_anew():  # ✱
    def call():
        return jax.jit(lambda x: x + 1)(array())

    return call, call


@again("function", told="make it once")
def a_partial_made_anew():  # ✱
    def add(k, x):
        return x + k

    def call():
        return jax.jit(functools.partial(add, 2))(array())

    return call, call


@again("function", told="make it once")
def a_bound_method_jitted_anew():  # ✱
    class Env:
        def step(self, x):
            return x * 2

    env = Env()

    def call():
        return jax.jit(env.step)(array())

    return call, call


@quiet
def a_function_jitted_anew():
    def f(x):
        return x + 1

    def call():
        return jax.jit(f)(array())

    return call, call


# ---------------------------------------------------------------------- structure


@again("structure", told="t['b']: (not there) → f32[3]")
def a_key_more():
    f, a = jax.jit(lambda t: t), array()
    return lambda: f({"a": a}), lambda: f({"a": a, "b": a})


@again("structure", told="t: tuple of 2 → list of 2")
def a_tuple_for_a_list():
    f, a = jax.jit(lambda t: t[0] + t[1]), array()
    return lambda: f((a, a)), lambda: f([a, a])


@again("structure", told="t[1]: None → f32[3]")
def an_array_for_none():
    f, a = jax.jit(lambda t: t[0] if t[1] is None else t[0] + t[1]), array()
    return lambda: f((a, None)), lambda: f((a, a))


@jax.tree_util.register_pytree_node_class
class Tagged:
    def __init__(self, value, tag):
        self.value, self.tag = value, tag

    def tree_flatten(self):
        return (self.value,), self.tag

    @classmethod
    def tree_unflatten(cls, tag, children):
        return cls(children[0], tag)


@again("aux data", told="t: 'p' → 'q'")
def aux_data():
    f, a = jax.jit(lambda t: t.value + 1), array()
    return lambda: f(Tagged(a, "p")), lambda: f(Tagged(a, "q"))


@again("keyword", told="x: passed by position → passed by keyword")
def a_keyword():
    f, a = jax.jit(lambda x: x + 1), array()
    return lambda: f(a), lambda: f(x=a)


@quiet
def the_order_of_keys():
    f, a = jax.jit(lambda t: t["a"] + t["b"]), array()
    return lambda: f({"a": a, "b": a}), lambda: f({"b": a, "a": a})


# ---------------------------------------------------------------------- where arrays are


def mesh(kind: AxisType) -> Mesh:
    return jax.make_mesh((2,), ("a",), axis_types=(kind,))


@again("place", told="P('a',) over the mesh (a=2) → P() over the mesh (a=2)")
def a_sharding():  # ✱
    f, m = jitted(), mesh(AxisType.Auto)
    a, b = (jax.device_put(array(4), NamedSharding(m, spec)) for spec in (P("a"), P()))
    return lambda: f(a), lambda: f(b)


@again("place")
def a_sharding_in_the_type():
    f, m = jitted(), mesh(AxisType.Explicit)
    a, b = (jax.device_put(array(4), NamedSharding(m, spec)) for spec in (P("a"), P()))
    return lambda: f(a), lambda: f(b)


@again("place", told="committed to cpu:0 → committed to cpu:1")
def a_device():  # ✱
    f = jitted()
    a, b = (jax.device_put(array(), device) for device in jax.devices()[:2])
    return lambda: f(a), lambda: f(b)


@again("place", told="uncommitted → committed to cpu:0")
def a_commitment():  # ✱
    f, a, b = jitted(), on_device(), jax.device_put(array(), jax.devices()[0])
    return lambda: f(a), lambda: f(b)


@again("jit option", told="donate_argnums: not given → (0,)")
def a_donation():  # ✱
    def f(x):
        return x + 1

    kept, donating = jax.jit(f), jax.jit(f, donate_argnums=0)
    a, b = on_device(), on_device()
    return lambda: kept(a), lambda: donating(b)


@quiet
def a_donated_buffer_each_time():
    f = jax.jit(lambda x: x + 1, donate_argnums=0)
    fresh = [on_device() for _ in range(8)]
    return lambda: f(fresh.pop()), lambda: f(fresh.pop())


@quiet
def numpy_and_then_an_array():
    f, a, b = jitted(), array(), on_device()
    return lambda: f(a), lambda: f(b)


@quiet
def another_python_number():
    f, a = jax.jit(lambda x, s: x * s), array()
    return lambda: f(a, 2.0), lambda: f(a, 3.0)


# ---------------------------------------------------------------------- settings


def under(context: Callable[[], Any], f: Any, a: Any) -> Any:
    def probe():
        with context():
            return f(a)

    return lambda: f(a), probe


@again("setting", told="64-bit mode: False → True")
def x64():
    return under(lambda: jax.enable_x64(new_val=True), jitted(), array())


@again("setting", told="matmul precision: None → highest")
def matmul_precision():
    return under(lambda: jax.default_matmul_precision("highest"), jitted(), array())


@again("setting", told="default device")
def default_device():
    return under(lambda: jax.default_device(jax.devices()[1]), jitted(), array())


@again("setting", told="mesh")
def a_mesh():
    m = mesh(AxisType.Auto)
    return under(lambda: jax.set_mesh(m), jitted(), array())


@quiet
def debug_nans():
    return under(lambda: jax.debug_nans(new_val=True), jitted(), array())


@quiet
def disable_jit():
    f, a = jitted(), on_device()
    a + 1

    def warm():
        f(a)
        with jax.disable_jit():
            return f(a)

    return warm, under(jax.disable_jit, f, a)[1]


# ---------------------------------------------------------------------- inside, outside


@again("shape", told="x: f32[3] → f32[4], axis 0")
def a_jit_inside_of_a_plain_function():
    inner, sizes = jax.jit(lambda x: x * 2), [3]

    def outer():
        return inner(array(sizes[0]))

    def probe():
        sizes[0] = 4
        return outer()

    return outer, probe


@again("shape", told="f32[3] → f32[4]")
def a_callback_that_compiles():
    inner, sizes = jax.jit(lambda x: (x * 2).sum()), [3]

    def host(_):
        return np.asarray(inner(array(sizes[0])))

    f = jax.jit(lambda x: x + jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x))
    a = on_device()

    def probe():
        sizes[0] = 4
        return jax.block_until_ready(f(a))

    return lambda: jax.block_until_ready(f(a)), probe


@quiet
def a_warm_callback():
    f, a = jax.jit(lambda x: jax.pure_callback(lambda v: v, x, x)), on_device()
    return lambda: jax.block_until_ready(f(a)), lambda: jax.block_until_ready(f(a))


@quiet
def a_warm_debug_callback():
    def f(x):
        jax.debug.callback(lambda v: None, x)
        return x + 1

    f, a = jax.jit(f), on_device()
    return lambda: jax.block_until_ready(f(a)), lambda: jax.block_until_ready(f(a))


@again("transform", told="under jax.vmap")
def a_first_vmap():  # ✱
    f, a, b = jitted(), array(), np.ones((2, 3), np.float32)
    return lambda: f(a), lambda: jax.vmap(f)(b)


@again("transform", told="under jax.grad")
def a_first_grad():  # ✱
    f, a = jax.jit(lambda x: (x * x).sum()), on_device()
    return lambda: f(a), lambda: jax.grad(f)(a)


@quiet
def a_warm_vmap():
    f, b = jitted(), np.ones((2, 3), np.float32)
    return lambda: jax.vmap(f)(b), lambda: jax.vmap(f)(b)


@quiet
def a_warm_grad():
    f, a = jax.jit(lambda x: (x * x).sum()), on_device()
    return lambda: jax.grad(f)(a), lambda: jax.grad(f)(a)


@again(told="jax.lax.cond, called outside of jit")
def an_eager_cond():
    t = on_device(1)[0]

    def step():
        return lax.cond(t < 1.0, lambda: t + 0.1, lambda: t * 0.5)

    return step, step


@again("shape", told="jax.numpy.tanh, called outside of jit")
def an_eager_operation():
    a, b = on_device(3), on_device(97)
    return lambda: jnp.tanh(a), lambda: jnp.tanh(b)


@again("shape", told="traced (by lower, or eval_shape)")
def a_trace_without_a_compile():
    f, a, b = jitted(), array(), array(4)
    return lambda: f(a), lambda: f.lower(b)


@again("shape", told="traced (by lower, or eval_shape)")
def eval_shape_of_a_jitted_function():
    f, a, b = jitted(), array(), array(4)
    return lambda: f(a), lambda: jax.eval_shape(f, b)


@again(told="was not compiled before, as far as was seen")
def another_function():
    f, g, a = jitted(), jax.jit(lambda x: x * 3), array()
    return lambda: f(a), lambda: g(a)


@again("dtype", told="PRNG")
def a_typed_key_for_a_raw_one():
    f, a, b = jax.jit(jax.random.bits), jax.random.PRNGKey(0), jax.random.key(0)
    return lambda: f(a), lambda: f(b)


ALL[-1] = dataclasses.replace(ALL[-1], kinds=frozenset({"dtype", "shape"}), told="key<fry>")


@again(told="clear_cache")
def its_own_cache_cleared():
    f, a = jitted(), array()

    def probe():
        f.clear_cache()
        return f(a)

    return lambda: f(a), probe


@quiet
def all_caches_cleared():
    f, a = jitted(), array()

    def probe():
        jax.clear_caches()
        return f(a)

    return lambda: f(a), probe


@again("shape")
def all_caches_cleared_and_another_shape():
    f, a, b = jitted(), array(), array(4)

    def probe():
        jax.clear_caches()
        return f(b)

    return lambda: f(a), probe


# ---------------------------------------------------------------------- threads


def in_thread(call: Callable[[], Any]) -> None:
    def run():
        with contextlib.suppress(tx.RetraceError):  # a thread's error reaches nobody
            call()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


@again("shape")
def a_shape_in_a_thread():
    f, a, b = jitted(), array(), array(4)
    return lambda: f(a), lambda: in_thread(lambda: f(b))


@quiet
def the_same_in_a_thread():
    f, a = jitted(), array()
    return lambda: f(a), lambda: in_thread(lambda: f(a))


@quiet
def something_else_in_a_thread_of_somebody_else():
    f, g, a, go, done = jitted(), jax.jit(lambda x: x * 7), array(), threading.Event(), threading.Event()

    def other():
        go.wait(_LONG)
        with contextlib.suppress(tx.RetraceError):
            g(array(5))
        done.set()

    threading.Thread(target=other, daemon=True).start()

    def probe():
        go.set()
        done.wait(_LONG)
        return f(a)

    return lambda: f(a), probe


# ---------------------------------------------------------------------- this library's own


@quiet
def a_check_against_the_reference():
    f = tx.assert_relocation(lambda x: x + 1, calls="always", sample=2)(tx.pad_static(8)(lambda x: x + 1))
    a, b = on_device(4), on_device(6)  # the sampled rows are taken by an eager operation, of each length
    return lambda: f(a), lambda: f(b)


@quiet
def a_new_bucket():
    f = tx.pad_static(buckets=(4, 8))(lambda x: x.sum(0))
    a, b = array(3), array(6)
    return lambda: f(a), lambda: f(b)


@quiet
def another_length_of_the_same_bucket():
    f = tx.pad_static(8)(lambda x: x - x.mean(0))
    a, b = array(3), array(6)
    return lambda: f(a), lambda: f(b)


@again("dtype")
def a_dtype_in_a_bucket():
    f = tx.pad_static(8)(lambda x: x.sum(0))
    a, b = array(3), array(6, "int32")
    return lambda: f(a), lambda: f(b)


@again("shape")
def another_number_of_rows_in_chunks():
    f = tx.chunked(lax.map, size=4)(lambda x: x - x.mean(0))
    a, b = on_device(8), on_device(12)
    return lambda: f(a), lambda: f(b)
