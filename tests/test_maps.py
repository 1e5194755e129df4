import subprocess
import sys

import pytest

from unibct.errors import UserError
from unibct.maps import MAPS
from unibct.methods import METHODS


def test_every_name_has_its_function_and_a_description():
    for name, entry in MAPS.items():
        assert callable(entry.fit_function()), name
        assert 0 < len(entry.description) < 60, name
    with pytest.raises(UserError, match=r"unknown map 'spline'.*; choose one of procrustes"):
        MAPS.find("spline")


def test_no_map_has_the_name_of_a_method():
    assert not set(MAPS) & set(METHODS)  # a benchmark tells them by their names


def test_the_names_need_no_torch():
    code = "import sys, unibct.maps; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
