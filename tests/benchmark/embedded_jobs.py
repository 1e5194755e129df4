"""Jobs of a benchmark on the embedded images, for tests."""

from unibct.benchmark.grid import make_grid
from unibct.benchmark.jobs import make_jobs
from unibct.data.readers import open_images


def jobs_of(**changes):
    return make_jobs(make_grid(**changes), open_images("glyphs:train"))
