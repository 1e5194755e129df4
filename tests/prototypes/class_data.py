import numpy as np

SIZES = [1, 7, 2, 60, 8, 8, 1, 33, 90, 15, 9, 3]
ROW = 2 * 16 * 4  # bytes of an old and a new row of 16 numbers


def unit(x):
    """Rows scaled to length 1."""
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def naive_refined(v, x, tau=0.05, lam=0.9, axis=1):
    """The paper's equations as they stand, in double precision, with an inverse."""
    v, x = unit(v.astype(np.float64)), unit(x.astype(np.float64))
    m = len(v)
    if m == 1:
        return v[0]
    logits = x @ x.T / tau
    np.fill_diagonal(logits, -np.inf)
    logits -= logits.max(axis=axis, keepdims=True)
    edges = np.exp(logits)
    edges /= edges.sum(axis=axis, keepdims=True)
    refined = (1 - lam) * np.linalg.inv(np.eye(m) - lam * edges) @ v
    return refined.mean(axis=0)


def classes_of(sizes, dim=16, seed=0, noise=0.6):
    """Old and new embeddings and labels, shuffled, of classes of some sizes."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    centres = rng.normal(size=(len(sizes), dim))
    x = centres[labels] + noise * rng.normal(size=(len(labels), dim))
    v = centres[labels][:, ::-1] + noise * rng.normal(size=(len(labels), dim))
    order = rng.permutation(len(labels))
    return v[order], x[order], labels[order]


def classes_in(order, sizes):
    """Old and new embeddings (float32) and labels, by class or shuffled."""
    v, x, labels = (np.ascontiguousarray(a) for a in classes_of(sizes))
    if order == "class":
        by_class = np.argsort(labels, kind="stable")
        v, x, labels = v[by_class], x[by_class], labels[by_class]
    return v.astype(np.float32), x.astype(np.float32), labels


def gap_to_naive(ours, v, x, labels, tau=0.05, lam=0.9):
    """The largest difference of prototypes to the paper's equations with an inverse."""
    naive = [naive_refined(v[labels == c], x[labels == c], tau, lam) for c in range(len(ours))]
    return np.abs(np.asarray(ours) - unit(np.array(naive))).max()
