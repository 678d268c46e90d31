"""The test suite. Read `samples.py` and `test_contract.py` first: what every op of minitx is held to."""
