"""Estimators that fit by attention against scikit-learn's, on one thread: seconds, ratios, differences.

Data as they come: unscaled, with columns in units from 1e-3 to 1e3, large, and with more columns than examples.
scikit-learn is asked for 1e-12 where it can be, so that what is compared is the minimiser.
`python -m benchmarks estimators` writes the table of docs/in_context.md, `docs/results/estimators.csv`.
"""

import csv
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

import anchorhead as ah
from anchorhead.digits import Up

ROWS = Path(__file__).parents[1] / "docs" / "results" / "estimators.csv"
HEADER = ("estimator", "data", "examples", "columns", "seconds", "scikit-learn", "ratio", "difference", "proved")
EXACT = {"tol": 1e-12, "max_iter": 100_000}


def large(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Correlated columns in units from 1e-3 to 1e3, and a linear combination of ten of them."""
    draw = np.random.default_rng(0)
    mix = np.eye(50) + 0.1 * draw.standard_normal((50, 50))
    X = draw.standard_normal((count, 50)) @ mix * 10 ** draw.uniform(-3, 3, 50)
    return X, (X[:, :10] / X[:, :10].std(0)).sum(1)


def cases(tiny: bool) -> list[tuple[str, str, np.ndarray, np.ndarray, Any, Any]]:
    """Name, what the data are, X, y, ours and theirs."""
    from sklearn import linear_model as theirs
    from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
    from sklearn.kernel_ridge import KernelRidge

    ours, draw = ah.in_context, np.random.default_rng(1)
    sets = load_diabetes, load_breast_cancer, load_wine, load_digits
    (Xd, yd), (Xc, yc), (Xw, yw), (Xn, yn) = (load(return_X_y=True) for load in sets)
    newton = {"solver": "newton-cholesky", **EXACT}
    small = [
        ("LinearRegression", "breast cancer", Xc, yc, ours.LinearRegression(), theirs.LinearRegression(tol=1e-14)),
        ("Ridge", "breast cancer", Xc, yc, ours.Ridge(), theirs.Ridge()),
        ("Lasso", "breast cancer", Xc, yc, ours.Lasso(0.001), theirs.Lasso(0.001, **EXACT)),
        ("LogisticRegression", "breast cancer", Xc, yc, ours.LogisticRegression(), theirs.LogisticRegression(**newton)),
        ("LogisticRegression", "wine, 3 classes", Xw, yw, ours.LogisticRegression(),
         theirs.LogisticRegression(**newton)),
        ("LogisticRegression", "digits, 10 classes", Xn, yn, ours.LogisticRegression(),
         theirs.LogisticRegression(**EXACT)),
        ("PoissonRegressor", "diabetes", Xd, yd, ours.PoissonRegressor(), theirs.PoissonRegressor(**newton)),
        ("HuberRegressor", "breast cancer", Xc, yc, ours.HuberRegressor(), theirs.HuberRegressor(**EXACT)),
        ("KernelRidge", "diabetes", Xd, yd, ours.KernelRidge(), KernelRidge(kernel="rbf", gamma=1 / Xd.shape[1])),
    ]  # fmt: skip
    X, s = large(1000 if tiny else 100_000)
    noisy, s = s + draw.standard_normal(len(s)), (s - s.mean()) / s.std()
    labels, counts = draw.random(len(s)) < 1 / (1 + np.exp(-s)), draw.poisson(np.exp(s))
    many = [
        ("LinearRegression", "large", X, noisy, ours.LinearRegression(), theirs.LinearRegression(tol=1e-14)),
        ("Ridge", "large", X, noisy, ours.Ridge(), theirs.Ridge()),
        ("Lasso", "large", X, noisy, ours.Lasso(0.1), theirs.Lasso(0.1, **EXACT)),
        ("LogisticRegression", "large", X, labels, ours.LogisticRegression(), theirs.LogisticRegression(**newton)),
        ("PoissonRegressor", "large", X, counts, ours.PoissonRegressor(), theirs.PoissonRegressor(**newton)),
    ]
    beyond = draw.standard_normal((60, 1000))
    halves, few = beyond[:, :5].sum(1) > 0, draw.poisson(np.exp(0.3 * beyond[:, 0]))
    wide = [
        ("LogisticRegression", "wide", beyond[:, :200], halves, ours.LogisticRegression(),
         theirs.LogisticRegression(**newton)),
        ("LogisticRegression", "wide", beyond, halves, ours.LogisticRegression(), theirs.LogisticRegression(**newton)),
        ("PoissonRegressor", "wide", beyond, few, ours.PoissonRegressor(), theirs.PoissonRegressor(**newton)),
    ]  # fmt: skip
    return many[:1] + small[:1] if tiny else small + many + wide


def timed(run: Callable[[], object]) -> float:
    """Seconds of one processor: what else the machine does is not counted."""
    with threadpool_limits(1):
        start = time.process_time()
        run()
        return time.process_time() - start


def learn(model: Any, X: np.ndarray, y: np.ndarray) -> None:
    """Fits; what keeps its data learns when it predicts."""
    model.fit(X, y)
    if not hasattr(model, "coef_"):
        model.predict(X)


def difference(ours: Any, theirs: Any, X: np.ndarray) -> float:
    """Of coefficients in units of their columns' deviations, relative to the largest; of kernels, of predictions."""
    if not hasattr(ours, "coef_"):
        found, wanted = ours.predict(X), theirs.predict(X)
    else:
        found, wanted = ours.coef_ * X.std(0), theirs.coef_ * X.std(0)
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def main(tiny: bool = False) -> None:
    rows, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)
    for name, said, X, y, ours, theirs in cases(tiny):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seconds, others = (timed(lambda m=model, X=X, y=y: learn(m, X, y)) for model in (ours, theirs))
            apart = difference(ours, theirs, X)
        proof = ours.certificate_
        proved = "" if proof is None else f"{Up(proof.bound):.1e}"
        row = (name, said, len(X), X.shape[1], f"{seconds:.2f}", f"{others:.3f}", f"{seconds / max(others, 1e-4):.2g}",
               f"{apart:.0e}", proved)  # fmt: skip
        rows.append(row)
        print(f"{name}, {said}, {len(X):,} x {X.shape[1]}: {row[4]} s against {row[5]} s, {row[6]} times as long; "
              f"coefficients within {row[7]}, proved {row[8] or 'nothing'}", flush=True)  # fmt: skip
    torch.set_num_threads(threads)
    if not tiny:
        with ROWS.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])
