"""`import minitx` brings in the engine, the ops and the modules, and little besides; the rest comes when asked for."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import minitx as mx

LIGHT = ["__future__", "copy", "dataclasses", "inspect", "threading"]   # of the standard library, beside what NumPy brings
ENGINE = ["backend", "contract", "gradcheck", "init", "nn", "observer", "op", "ops", "optim", "options", "panels",
          "parallel", "randomness", "saved", "special", "sums", "tape", "tensor", "waits"]


def fresh(*lines):
    """What a new interpreter prints that runs these lines."""
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=Path(__file__).parents[1], capture_output=True,
                          text=True)
    assert not done.returncode, done.stderr
    return done.stdout.split()


def test_import_minitx_brings_in_only_the_engine_with_its_ops_and_modules():
    brought = fresh(f"import sys, numpy, {', '.join(LIGHT)}", "before = set(sys.modules)", "import minitx",
                    "print(*(set(sys.modules) - before))")
    allowed = {"minitx", *(f"minitx.{name}" for name in ENGINE)}
    assert {".".join(module.split(".")[:2]) for module in brought} == allowed


def test_reading_models_and_texts_needs_no_archives_no_network_and_no_third_package():
    heavy = ["gzip", "importlib.resources", "numpy.random", "safetensors", "tempfile", "threadpoolctl", "tokenizers", "tqdm"]
    brought = fresh("import sys, numpy", "before = set(sys.modules)", "import minitx.models, minitx.data",
                    "print(*(set(sys.modules) - before))")
    assert not set(brought) & set(heavy)


@pytest.mark.parametrize("name", ["data", "models", "profile", "record", "Recorder"])
def test_what_is_loaded_later_is_found_listed_and_the_same_as_ever(name):
    assert fresh("import minitx", f"print('{name}' in vars(minitx), '{name}' in dir(minitx), minitx.{name} is not None)",
                 f"from minitx import {name}", f"print({name} is minitx.{name})") == ["False", "True", "True", "True"]


def test_every_public_name_is_there_and_listed_once():
    for name in mx.__all__:
        assert getattr(mx, name) is not None and dir(mx).count(name) == 1
    assert mx.profile is import_module("minitx.profiling").profile and mx.models is import_module("minitx.models")


def test_a_name_that_minitx_lacks_is_refused_as_python_does():
    with pytest.raises(AttributeError, match="module 'minitx' has no attribute 'modles'"):
        mx.modles      # noqa: B018
