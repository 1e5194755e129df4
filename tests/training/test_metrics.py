from dataclasses import asdict

from unibct.training.metrics import METRICS_FILE, EpochMetrics, write_metrics


def test_a_row_for_each_epoch(tmp_path):
    write_metrics(tmp_path, [])
    assert list(tmp_path.iterdir()) == []
    rows = [asdict(EpochMetrics(epoch, 0.1, 1.0, 2.5, 0.25, 4.0, 50.0)) for epoch in range(2)]
    write_metrics(tmp_path, rows)
    assert (tmp_path / METRICS_FILE).read_text() == (
        "epoch,lr,eta,loss_cls,loss_comp,seconds,images_per_second\n"
        "0,0.1,1.0,2.5,0.25,4.0,50.0\n"
        "1,0.1,1.0,2.5,0.25,4.0,50.0\n"
    )
