from unibct.report.paper_figures import paper_figure


def test_the_papers_figures_of_extended_data():
    assert paper_figure("extended-data", "old", "self", "TAR@1e-4") == "93.36"
    assert paper_figure("extended-data", "old", "self", "top-1") == "69.90"
    assert paper_figure("extended-data", "unibct", "cross", "top-5") == "81.77"


def test_the_tar_is_found_at_any_false_accept_rate():
    at_other_rate = paper_figure("open-class", "unibct", "cross", "TAR@1e-2")
    assert at_other_rate == paper_figure("open-class", "unibct", "cross", "TAR@1e-4")
    assert at_other_rate is not None


def test_what_the_paper_does_not_have_is_none():
    assert paper_figure("extended-data", "old", "cross", "top-1") is None
    assert paper_figure("extended-data", "unibct", "cross", "mAP") is None
    assert paper_figure("extended-data", "unibct-plus", "cross", "top-1") is None
