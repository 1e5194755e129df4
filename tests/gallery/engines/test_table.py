import pytest

from unibct.errors import UserError
from unibct.gallery.engines.table import ENGINES, Place, open_engine


def test_an_unknown_engine_lists_the_names(tmp_path):
    with pytest.raises(UserError, match=", ".join(ENGINES)):
        open_engine("oracle", Place(tmp_path, "g"))


def test_a_server_needs_an_address_and_the_embedded_engine_takes_none(tmp_path):
    with pytest.raises(UserError, match="needs --at"):
        open_engine("milvus", Place(tmp_path, "g"))
    with pytest.raises(UserError, match="takes no --at"):
        open_engine("embedded", Place(tmp_path, "g", "http://localhost:1"))
