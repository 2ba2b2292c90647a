import pytest

from dumpdiff.rulebook import Rules, load_rules


@pytest.fixture(scope="session")
def rules() -> Rules:
    """The rules as shipped."""
    return load_rules()
