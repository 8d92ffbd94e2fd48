"""A benchmark's declaration is checked with its class, and errors name the culprit."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from accel_bench_op import Benchmark, BenchmarkArg, as_dtype

from accel_bench.errors import PluginError

DEVICE = BenchmarkArg("device", "Where it runs.")
DTYPE = BenchmarkArg("dtype", "In which dtype.")


def declared(**attributes: Any) -> type[Benchmark]:
    def init(self: Any, device: str = "cpu", dtype: str = "float32") -> None:
        self.device, self.dtype = device, dtype

    found = {"name": "foo", "args": (DEVICE, DTYPE), "__init__": init, **attributes}
    return type("FooBenchmark", (Benchmark,), found)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"args": (BenchmarkArg("devise", ""),)},
            "'devise' is not taken by __init__; did you",
        ),
        ({"args": (DTYPE, DEVICE)}, "in the order of args: dtype, device; it begins with device"),
        ({"args": (DEVICE, DEVICE)}, "in the order of args: device, device; it begins with device"),
        ({"args": (DTYPE,)}, "must take the arguments first, in the order of args: dtype"),
        (
            {"__init__": lambda self, device, dtype, rows: None},
            "__init__ needs 'rows', which is not in args; give it a default",
        ),
        ({"name": "foo/bar"}, "name 'foo/bar' is no valid file name"),
        ({"name": "foo bar"}, "name 'foo bar' is no valid file name"),
        ({"name": ".."}, "name '..' is no valid file name"),
        ({"name": 3}, "name 3 is no valid file name"),
        ({"sizes": {"tiny": {"rows": 3}}}, "size 'tiny' sets 'rows', which __init__ does not take"),
    ],
)
def test_an_error_names_the_class_and_what_is_wrong(
    attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PluginError, match="FooBenchmark: ") as caught:
        declared(**attributes)
    assert message in str(caught.value)


def test_arguments_beyond_the_declared_ones_have_defaults_or_are_keywords() -> None:
    def init(self: Any, device: str, dtype: str, rows: int = 3, **more: Any) -> None:
        self.rows, self.more = rows, more

    found = declared(__init__=init, sizes={"tiny": {"rows": 2, "columns": 4}})
    assert found.name == "foo"


def test_a_class_that_takes_nothing_needs_no_init() -> None:
    assert type("Bar", (Benchmark,), {"name": "bar-1.5"}).args == ()


def test_a_base_of_others_has_no_name_and_is_not_checked() -> None:
    assert declared(name="", args=(BenchmarkArg("devise", ""),)).name == ""


def test_properties_under_a_classmethod_and_plain_ones_are_values_of_the_class() -> None:
    found = declared(
        name=classmethod(property(lambda cls: "bar")), description=property(lambda self: "baz")
    )
    assert (found.name, found.description) == ("bar", "baz")


class Sized(Benchmark):
    """A benchmark with sizes."""

    name = "sized"
    args = (BenchmarkArg("rows", "Rows."), DEVICE)
    sizes: ClassVar = {"tiny": {"rows": 2}, "on-cpu": {"rows": 3, "device": "cpu"}}

    def __init__(self, rows: int = 1, device: str = "meta") -> None:
        self.rows, self.device = rows, device

    def make_batch(self) -> Any:
        return [], {}

    def fn(self) -> Any:
        return lambda: None


def test_a_size_is_arguments_and_settings_are_given_where_they_are_taken() -> None:
    tiny = Sized.at_size("tiny", device="cuda", dtype="bfloat16")
    assert (tiny.rows, tiny.device) == (2, "cuda")
    fixed = Sized.at_size("on-cpu", device="cuda")
    assert (fixed.rows, fixed.device) == (3, "cpu")
    assert Sized.at_size().rows == 1


def test_a_size_that_there_is_not_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(PluginError, match="'sized' has no size 'tinny'; did you mean 'tiny'"):
        Sized.at_size("tinny")


def test_a_dtype_is_given_by_itself_or_by_its_name() -> None:
    import torch

    assert as_dtype("bfloat16") is as_dtype(torch.bfloat16) is torch.bfloat16
    with pytest.raises(PluginError, match="no dtype 'float33'"):
        as_dtype("float33")
