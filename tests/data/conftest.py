from functools import cache

import pytest

from fedaux_pl.data import tokenizer


@pytest.fixture(autouse=True, scope="session")
def _load_each_tokenizer_once():
    """Loading one takes longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "load_tokenizer", cache(tokenizer.load_tokenizer))
        yield
