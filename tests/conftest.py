"""Every module of tests/fixtures is a pytest plugin."""

import os
from pathlib import Path

import pytest

pytest_plugins = [f"fixtures.{path.stem}" for path in sorted((Path(__file__).parent / "fixtures").glob("*.py"))]
pytest.register_assert_rewrite(*pytest_plugins)  # before a plugin imports another one

os.environ.setdefault("THREEFOLD_TIER_DEADLINE", "30")  # seconds; a busy machine must not degrade the recall of a test
