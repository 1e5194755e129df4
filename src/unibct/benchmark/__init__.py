"""Every method in every scenario over several seeds, and upgrade chains, as resumable jobs.

A benchmark is a client of the other rooms: a job trains a model, embeds the test images with it and
runs tests. ``grid`` says what is compared, ``jobs`` turns it into jobs, ``execution`` runs one,
``workers`` several at the same time, ``run`` all of them, and ``results`` reads their numbers back.
Tables and pages are made in ``report``.
"""

from unibct.methods import DEFAULT_METHOD

# The paper's methods, and ours. Readable without torch, for help texts.
DEFAULT_METHODS = (
    "none", "regress", "contrast", "bct", "unibct-centroid", "unibct-drop", "unibct",
    DEFAULT_METHOD,
)  # fmt: skip
CHAIN_METHODS = ("unibct", DEFAULT_METHOD)
VERSIONS = range(1, 4)  # the models of an upgrade chain
