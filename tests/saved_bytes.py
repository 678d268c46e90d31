"""The memory that every op keeps for its backward, as a table that a reviewer sees grow.

    python -m tests.saved_bytes         writes `saved_bytes.json`: for the first sample of every op, names and bytes

`test_contract.py` holds the ops to it.
"""

import json
from pathlib import Path

import minitx as mx

from . import samples as _  # noqa: F401  (enters the samples)
from .harness import run, samples

TABLE = Path(__file__).with_name("saved_bytes.json")


def measured(op: str) -> dict[str, int]:
    """What the backward of an op keeps on its first sample: {name: bytes}."""
    return {row.name: row.bytes for row in mx.saved(run(mx.OPS[op], samples(op)[0]).backward)}


if __name__ == "__main__":
    rows = [f"  {json.dumps(op)}: {json.dumps(measured(op), sort_keys=True)}" for op in sorted(mx.OPS)]
    TABLE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
