"""Reading files: plain values with their places, and hostile files refused in little memory."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_bench.documents.load import load_file, load_yaml, parse_value
from accel_bench.errors import ScenarioError

DEPTH = 20_000

HOSTILE = {
    "alias bomb": ("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]", "1:4: anchors"),
    "recursion": ("a: &a [*a]", "1:4: anchors"),
    "alias without an anchor": ("a: *b", "1:4: aliases"),
    "deep flow lists": ("a: " + "[" * DEPTH + "]" * DEPTH, "deeper than 32 levels"),
    "deep flow mappings": ("{a: " * DEPTH + "1" + "}" * DEPTH, "deeper than 32 levels"),
    "deep block lists": ("- " * DEPTH + "a", "deeper than 32 levels"),
    "deep block mappings": ("\n".join(" " * i + "a:" for i in range(500)), "deeper than 32"),
    "unclosed lists": ("a: " + "[" * DEPTH, "deeper than 32 levels"),
    "endless integer": ("a: " + "9" * 5000, "1:4: an integer of 5000 digits"),
    "endless exponent": ("a: 1e" + "9" * 5000, "1:4: .* is too large"),
    "float beyond the largest": ("a: 1e400", "1:4: 1e400 is too large"),
    "float beyond what is stored": ("a: -1e100", "1:4: -1e100 is too large"),
    "not a number": ("a: 1\nb: .nan", "2:4: .nan is not a number"),
    "infinity": ("a: -.inf", "1:4: -.inf is not a number"),
    "python object": ("a: !!python/object/apply:os.system ['true']", "1:4: the tag .*os.system"),
    "python name": ("!!python/name:os.system", "1:1: the tag"),
    "ordinary tag": ("a: !!int '3'", "1:4: the tag"),
    "own tag": ("a: !include b.yaml", "1:4: the tag !include"),
    "duplicate key": ("a: 1\nb: 2\na: 3", "3:1: the key 'a' .* a second time .*line 1"),
    "duplicate key within": ("a: {b: 1, b: 2}", "1:11: the key 'b'"),
    "second document": ("a: 1\n---\nb: 2", "2:1: a second document"),
    "list as key": ("[a]: 1", "1:1: a key must be a plain word"),
    "mapping as key": ("? {a: 1}\n: 2", "1:3: a key must be a plain word"),
    "alias as key": ("*a : 1", "1:1: a key must be a plain word"),
    "tagged key": ("!!int 1: 2", "1:1: a key must be a plain word"),
    "NUL as it is": ("a: 1\nb: x\0y", "2:"),
    "NUL in a value's escape": ('a: "x\\0y"', "1:4: holds a NUL"),
    "NUL in a key's escape": ('"x\\0y": 1', "1:1: holds a NUL"),
    "control character": ("a: 1\nb: é\x01", "2:5: control characters"),
    "half a character": ("a: \ud800", "not Unicode"),
    "half a character's escape": ('a: "\\ud800"', "1:.* invalid Unicode"),
    "not YAML": ("a: [1, 2", "did not find expected"),
    "tab as indentation": ("a:\n\tb: 2", "2:1: .*(tab|cannot start any token)"),
    "list at the top": ("- a", "1:1: expected keys and values, found a list"),
    "word at the top": ("a", "1:1: expected keys and values, found text"),
}
"""Text that is no scenario, and what the error says of it."""


@pytest.mark.parametrize("text, problem", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_text_is_refused_with_its_place(text, problem):
    with pytest.raises(ScenarioError, match=rf"^f\.yaml:.*{problem}"):
        load_yaml(text, "f.yaml")


@pytest.mark.parametrize(
    "content, problem",
    [
        ("a: 1\n".encode("utf-16"), "not UTF-8 text"),
        ("a: 1\n".encode("utf-16-le"), "NUL character; save it as UTF-8"),
        ("a: 1\n".encode("utf-32-be"), "NUL character"),
        ("é: 1\n".encode("latin-1"), r"not UTF-8 text \(byte 0\)"),
        (b"a: 1\nb: \0", r":2:1: holds a NUL"),
    ],
    ids=["utf-16 with a mark", "utf-16 without", "utf-32", "latin-1", "nul"],
)
@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".toml", ".json"])
def test_a_file_that_is_not_utf8_text_is_refused(tmp_path, content, problem, suffix):
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=problem):
        load_file(path)


@pytest.mark.parametrize("suffix", [".yaml", ".toml", ".json"])
def test_a_file_of_100_megabytes_is_refused(tmp_path, suffix):
    path = tmp_path / f"file{suffix}"
    with path.open("wb") as handle:
        handle.truncate(100 * 2**20)
    with pytest.raises(ScenarioError, match="larger than"):
        load_file(path)


def test_a_file_of_just_the_allowed_size_is_read(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text("a: 1\n#" + "x" * (256 * 1024 - 6))
    assert load_file(path).data == {"a": 1}


@pytest.mark.parametrize("name", ["missing.yaml", "folder.yaml", "nul\0.yaml"])
def test_what_cannot_be_read_is_an_error_with_its_name(tmp_path, name):
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_file(tmp_path / name)


def test_another_kind_of_file_is_refused_unread(tmp_path):
    with pytest.raises(ScenarioError, match=r"ends in \.yaml, \.yml, \.toml or \.json"):
        load_file(tmp_path / "missing.ini")


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1")
    assert load_file(path).data == {"a": 1}


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
@pytest.mark.timeout(120)
def test_all_hostile_texts_together_stay_below_200_megabytes(tmp_path):
    texts = [text for text, _ in HOSTILE.values()] + list(LARGE.values())
    path = tmp_path / "file.yaml"
    files = []
    for index, text in enumerate(texts):
        path = tmp_path / f"{index}.yaml"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        files.append(path)
    assert peak_bytes_of_loading(files) < 200 * 2**20


LARGE = {
    "keys": "".join(f"k{index}: 1\n" for index in range(20_000)),
    "empty lists": "a: [" + "[]," * 80_000 + "]",
    "question marks": "? " * 120_000,
    "anchors": "".join(f"&a{index} " for index in range(25_000)),
    "digits with a point": "a: " + "1" * 250_000 + ".0",
    "one quoted word": 'a: "' + "\\n" * 120_000 + '"',
    "one unclosed word": 'a: "' + "x" * 250_000,
}
"""Texts just below the limit of size that make a parser do as much as it can."""


def peak_bytes_of_loading(files: list[Path]) -> int:
    """Load files in a process of its own, whatever becomes of each; return its peak of memory."""
    code = """
import re, sys
from pathlib import Path
from accel_bench.errors import ScenarioError
from accel_bench.documents.load import load_file
for name in sys.argv[1:]:
    try:
        load_file(Path(name))
    except ScenarioError:
        pass
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""
    command = [sys.executable, "-c", code, *map(str, files)]
    return int(subprocess.run(command, check=True, capture_output=True).stdout) * 1024


@pytest.mark.parametrize(
    "text, value",
    [
        ("2e-4", 2e-4),
        ("1E3", 1000.0),
        ("-.5e+3", -500.0),
        ("5.", 5.0),
        ("+5", 5),
        ("-0", 0),
        ("017", 17),
        ("no", "no"),
        ("on", "on"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("0x1F", "0x1F"),
        ("2020-01-01", "2020-01-01"),
        ("NaN", "NaN"),
        ("'5'", "5"),
        ('"no"', "no"),
        ("! 5", "5"),
        ("[1, a, null]", [1, "a", None]),
        ("{a: {b: 1.5}}", {"a": {"b": 1.5}}),
    ],
)
def test_a_value_is_what_it_looks_like(text, value):
    found = parse_value(text, "--set")
    assert found == value
    assert type(found) is type(value)


def test_keys_are_always_text():
    data = load_yaml("1: a\ntrue: b\n~: c\n2020-01-01: d", "f.yaml").data
    assert data == {"1": "a", "true": "b", "~": "c", "2020-01-01": "d"}


@pytest.mark.parametrize("text", ["", "# nothing\n", "null", "---\n"])
def test_a_file_without_content_is_an_empty_mapping(text):
    assert load_yaml(text, "f.yaml").data == {}


def test_an_override_as_long_as_a_file_may_be_is_refused():
    with pytest.raises(ScenarioError, match=r"--set model\.id: the value is longer"):
        parse_value("x" * (256 * 1024 + 1), "--set model.id")


def test_each_value_has_a_place_and_an_unknown_one_that_of_what_encloses_it():
    document = load_yaml("model:\n  id: x\nstacks:\n  a:\n  - use: b\n    r: 1\n", "f.yaml")
    assert document.where(("model",)) == "f.yaml:1:1"
    assert document.where(("model", "id")) == "f.yaml:2:3"
    assert document.where(("stacks", "a", 0, "r")) == "f.yaml:6:5"
    assert document.where(("model", "dtype")) == "f.yaml:1:1"
    assert document.where(("other",)) == "f.yaml"


class QuotingDumper(yaml.SafeDumper):
    """Writes all text in quotes, since plain `1e3` is a number to us and text to YAML 1.1."""

    def ignore_aliases(self, data: object) -> bool:
        return True


QuotingDumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'),
)

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
scalars = (
    st.none() | st.booleans() | st.integers(-(10**29), 10**29) | st.floats(-9e99, 9e99) | words
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(words, values, max_size=4), st.booleans())
def test_plain_values_survive_being_written_and_read(data, flow):
    text = yaml.dump(data, Dumper=QuotingDumper, default_flow_style=flow, sort_keys=False)
    found = load_yaml(text, "f.yaml").data
    assert found == data
    assert repr(found) == repr(data)


@settings(deadline=None)
@given(st.text(st.sampled_from("ab01.-+:{}[]&*!?|>'\"#%,~\\ \n\t\0\x85é\ud800"), max_size=40))
def test_any_text_is_read_or_refused_in_words(text):
    for read in (load_yaml, parse_value):
        try:
            read(text, "f.yaml")
        except ScenarioError as error:
            assert str(error).startswith("f.yaml")
