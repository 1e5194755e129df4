import os
import signal

import pytest

from unibct.training.stopping import stop_request


def test_only_a_second_ctrl_c_stops_at_once():
    with stop_request() as stop:
        assert not stop.wanted
        for _ in range(3):  # Slurm's, torchrun's
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wanted
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
