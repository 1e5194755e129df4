import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.training.recipes import SMALL
from unibct.distributed.ranks import ALONE
from unibct.errors import UserError
from unibct.training.lock import run_lock
from unibct.training.loop import TrainingLoop
from unibct.training.train import train

HOLD = """
import sys, time
from pathlib import Path
from unibct.distributed.ranks import ALONE
from unibct.training.lock import run_lock
with run_lock(Path(sys.argv[1]), ALONE):
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_second_training_in_a_folder_is_refused_and_harms_nothing(
    four_classes, tmp_path, monkeypatch
):
    whole = train(four_classes, SMALL, tmp_path / "whole", device="cpu")
    refused, take_steps = [], TrainingLoop.take_steps

    def second():
        try:
            train(four_classes, SMALL, tmp_path / "m", resume=True, device="cpu")
        except UserError as error:
            refused.append(str(error))

    def interrupted(self, *arguments):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        take_steps(self, *arguments)

    monkeypatch.setattr(TrainingLoop, "take_steps", interrupted)
    model = train(four_classes, SMALL, tmp_path / "m", device="cpu")
    assert model.fingerprint == whole.fingerprint
    assert len(refused) == SMALL.epochs
    assert f"process {os.getpid()} on " in refused[0]
    assert "another training" in refused[0]
    assert "\n" not in refused[0]
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == sorted(
        p.name for p in (tmp_path / "whole").iterdir()
    )


@pytest.mark.slow
def test_a_killed_process_releases_the_folder(tmp_path):
    folder = tmp_path / "m"
    command = [sys.executable, "-c", HOLD, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"locked\n"
    refusal = pytest.raises(UserError, match=f"process {process.pid} on ")
    with refusal, run_lock(folder, ALONE):
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with run_lock(folder, ALONE):
        assert folder.is_dir()
    assert not folder.exists()


def test_a_lock_leaves_the_folder_as_it_was(tmp_path):
    with run_lock(tmp_path / "new", ALONE):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with run_lock(tmp_path / "mine", ALONE):
        pass
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
