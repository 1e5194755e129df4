"""Two `.npy` files and nothing else: may the new model search the old gallery, or with a map?"""

import sys
from pathlib import Path

import numpy as np

import unibct
from unibct.maps.vector_map import fit_vector_map


def main(folder: Path) -> None:
    """Compare the models as they are, and with a map that brings new vectors into the old space."""
    old, new = np.load(folder / "old.npy"), np.load(folder / "new.npy")  # same images, same order
    labels = np.load(folder / "labels.npy")  # the class of each image
    result = unibct.evaluate(labels, old=old, new=new)
    print("as it is:", result.verdict)
    for metric in result.criteria:
        points = [f"{100 * value:+.1f}" for value in (metric.difference, metric.low, metric.high)]
        print(f"  {metric.metric}: {points[0]} points ({points[1]} to {points[2]})")

    classes = np.unique(labels)
    fitted_on = np.isin(labels, classes[::2])  # fit a map on half of the classes, test the others
    to_old = fit_vector_map(
        "linear", new=new[fitted_on], old=old[fitted_on], labels=labels[fitted_on]
    )
    others, (_, test_labels) = ~fitted_on, np.unique(labels[~fitted_on], return_inverse=True)
    mapped = unibct.evaluate(test_labels, old=old[others], new=to_old(new[others]))
    print("mapped:", mapped.verdict)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
