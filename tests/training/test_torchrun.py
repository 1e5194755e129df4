"""The command line's training, started as several processes."""

import pytest

from tests.distributed.torchrun import forked_ranks, torchrun

pytestmark = pytest.mark.slowest


def training_command(photos, out, *settings):
    line = ["unibct", "train", photos, "--out", out, "--device", "cpu"]
    for setting in ("size=16", "batch_size=12", "lr_warmup_epochs=0", *settings):
        line += ["--set", setting]
    return line


def test_one_process_speaks_each_keeps_a_log_and_errors_are_said_once(photo_folder, tmp_path):
    def train(start, processes, out):
        settings = ["schedule=milestones", "sample_rate=0.8", "epochs=2"]
        line = training_command(photo_folder, tmp_path / out, *settings)
        return start(processes, *line, "--checkpoint-every", 1, check=False)

    whole = train(torchrun, 2, "whole")
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout.count("fingerprint") == 1
    assert whole.stderr.count("training: 288 images in ") == 1  # once, however slow
    logs = [tmp_path / "whole" / "logs" / f"rank-0000{rank}.log" for rank in range(2)]
    assert sorted(logs[0].parent.iterdir()) == logs
    assert "training: " in logs[1].read_text()
    wrong = train(forked_ranks, 5, "wrong")
    assert wrong.returncode != 0
    assert "batch_size = 12 cannot be divided evenly by 5 processes" in wrong.stderr
    assert wrong.stderr.count("error: ") == 1


def test_processes_that_are_not_started_alike_are_refused(photo_folder, tmp_path):
    code = (
        "import os, sys\n"
        "from unibct.cli.entry import main\n"
        f"line = ['train', {str(photo_folder)!r}, '--out', {str(tmp_path / 'm')!r}]\n"
        "line += ['--device', 'cpu', '--set', 'batch_size=12']\n"
        "main(line + ['--checkpoint-every', '1'] * (os.environ['RANK'] == '1'))\n"
    )
    (tmp_path / "odd.py").write_text(code)
    found = forked_ranks(2, tmp_path / "odd.py", check=False)
    assert found.returncode != 0
    assert "error: the processes were not started alike" in found.stderr
    assert not (tmp_path / "m").exists()


def test_a_run_killed_in_its_first_refresh_goes_on(photo_folder, tmp_path):
    def train(out, *more):
        line = training_command(photo_folder, tmp_path / out, "warmup_epochs=0", "epochs=1")
        return forked_ranks(2, *line, *more, check=False)

    assert train("old").returncode == 0
    method = ("--old", tmp_path / "old", "--method", "unibct")
    (tmp_path / "new" / ".new_embeddings").mkdir(parents=True)
    (tmp_path / "new" / ".new_embeddings" / ".plain.lock").touch()
    found = train("new", *method, "--resume")
    assert found.returncode == 0, found.stderr
    assert not list((tmp_path / "new").glob(".*"))


@pytest.mark.parametrize("memory", ["0", str(1 << 30)])
def test_processes_that_read_differently_neither_hang_nor_train(memory, photo_folder, tmp_path):
    # With pixels in memory the first process ends by itself, however busy the machine is. Without,
    # it waits for the other one, which need not wait for it.
    code = (
        "import os, sys\n"
        "from unibct.cli import entry\n"
        "from unibct.cli.entry import main\n"
        f"entry._OTHERS_WAIT = {0 if memory == '0' else 60}\n"
        "from unibct.data import image_set\n"
        "from unibct.data.decoding import UnreadableImageError\n"
        "real = image_set.decode\n"
        "def decode(data):\n"
        "    if os.environ['RANK'] == '1' and len(data) % 7 == 3:\n"
        "        raise UnreadableImageError('Stale file handle')\n"
        "    return real(data)\n"
        "image_set.decode = decode\n"
        f"line = ['train', {str(photo_folder)!r}, '--out', {str(tmp_path / 'm')!r}]\n"
        "line += ['--device', 'cpu', '--set', 'batch_size=12', '--set', 'epochs=1']\n"
        "main([*line, '--skip-bad-images'])\n"
    )
    (tmp_path / "odd.py").write_text(code)
    # A cache of its own: a set that was checked before is not scanned again.
    environment = {"UNIBCT_PIXEL_MEMORY": memory, "UNIBCT_CACHE": str(tmp_path / "cache")}
    found = forked_ranks(2, tmp_path / "odd.py", check=False, environment=environment)
    assert found.returncode != 0
    if memory == "0":  # each image is first read by one process, and fails in the other later
        assert "cannot be read: Stale file handle" in found.stderr
    else:
        assert found.stderr.count("error: the processes do not read the same image ") == 1
        assert [p.name for p in (tmp_path / "m").iterdir()] == ["logs"]
