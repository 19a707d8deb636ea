import pytest
from support import tiny_model


@pytest.fixture(scope="session")
def model():
    return tiny_model()
