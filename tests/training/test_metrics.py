from unibct.training.metrics import METRICS_FILE, EpochMetrics, write_metrics


def test_a_row_for_each_epoch(tmp_path):
    write_metrics(tmp_path, [])
    assert list(tmp_path.iterdir()) == []
    rows = [EpochMetrics(epoch, 0.1, 1.0, 2.5, 0.25, 4.0, 50.0).row() for epoch in range(2)]
    write_metrics(tmp_path, rows)
    assert (tmp_path / METRICS_FILE).read_text() == (
        "epoch,lr,eta,loss_cls,loss_comp,seconds,images_per_second\n"
        "0,0.1,1.0,2.5,0.25,4.0,50.0\n"
        "1,0.1,1.0,2.5,0.25,4.0,50.0\n"
    )


def test_recall_has_its_columns_where_classes_were_set_aside(tmp_path):
    row = EpochMetrics(0, 0.1, 1.0, 2.5, 0.25, 4.0, 50.0, 0.75, 0.0).row()
    write_metrics(tmp_path, [row])
    head, values = (tmp_path / METRICS_FILE).read_text().splitlines()
    assert head.endswith(",images_per_second,recall_at_1,pixel_recall_at_1")
    assert values.endswith(",50.0,0.75,0.0")
