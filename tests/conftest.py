"""Every module of tests/fixtures is a pytest plugin."""

from pathlib import Path

import pytest

pytest_plugins = [f"fixtures.{path.stem}" for path in sorted((Path(__file__).parent / "fixtures").glob("*.py"))]
pytest.register_assert_rewrite(*pytest_plugins)  # before a plugin imports another one
