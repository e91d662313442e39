"""Perceptrons trained on scikit-learn's own data, compiled: no prediction changes, every logit is bounded."""

import functools

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler
from torch import nn

import anchorhead as ah

pytestmark = pytest.mark.heavy
LOADERS = {"digits": load_digits, "diabetes": load_diabetes}


@functools.cache
def data(name):
    x, y = LOADERS[name](return_X_y=True)
    y = y if name == "digits" else (y - y.mean()) / y.std()
    parts = train_test_split(x, y, random_state=0)
    scaler = StandardScaler().fit(parts[0])
    return scaler.transform(parts[0]), scaler.transform(parts[1]), parts[2], parts[3]


def relu_network(name):
    """Trained by scikit-learn; its own predictions are the reference."""
    train, _, labels, _ = data(name)
    kind = MLPClassifier if name == "digits" else MLPRegressor
    fitted = kind(hidden_layer_sizes=(40, 20), max_iter=60, random_state=0, early_stopping=True).fit(train, labels)
    layers = []
    for weight, bias in zip(fitted.coefs_, fitted.intercepts_, strict=True):
        linear = nn.Linear(*weight.shape, dtype=torch.float64)
        linear.weight.data, linear.bias.data = torch.tensor(weight.T), torch.tensor(bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1]), fitted.predict


def gelu_network(name):
    """Trained by torch; its own predictions are the reference."""
    train, _, labels, _ = data(name)
    torch.manual_seed(0)
    outputs = 10 if name == "digits" else 1
    network = nn.Sequential(
        nn.Linear(train.shape[1], 48), nn.GELU(), nn.Linear(48, 24), nn.GELU(), nn.Linear(24, outputs)
    )
    network.double()
    x, y = torch.tensor(train), torch.tensor(labels)
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3, weight_decay=1e-4)
    for _ in range(150):
        optimiser.zero_grad()
        out = network(x)
        loss = nn.functional.cross_entropy(out, y) if name == "digits" else ((out[:, 0] - y) ** 2).mean()
        loss.backward()
        optimiser.step()

    def predict(points):
        out = network(torch.tensor(points)).detach().numpy()
        return out.argmax(-1) if name == "digits" else out[:, 0]

    return network, predict


@pytest.mark.parametrize("make", [relu_network, gelu_network])
@pytest.mark.parametrize("name", ["digits", "diabetes"])
def test_no_prediction_changes_and_every_logit_is_bounded(name, make, tmp_path):
    train, test, _, labels = data(name)
    network, predict = make(name)
    points = np.concatenate([train, test])
    box = (points.min(0), points.max(0))
    model = ah.compile(network, box, tol=1e-6)
    certificate = model.certificate
    assert certificate.level == "proved"
    assert certificate.bound <= 1e-6
    with torch.no_grad():
        exact, found = network(torch.tensor(points)), model(torch.tensor(points))
    error = (exact - found).abs().amax(0)
    assert (error <= torch.tensor(certificate.outputs)).all()
    if name == "digits":
        assert (predict(test) == found[len(train) :].argmax(-1).numpy()).all()
        assert (predict(test) == labels).mean() > 0.93
    else:
        assert np.abs(predict(test) - found[len(train) :, 0].numpy()).max() <= 1e-6
    model.save(tmp_path / "network.safetensors")
    checked = ah.verify(tmp_path / "network.safetensors")
    assert (checked.bound, checked.outputs, checked.circuit) == (
        certificate.bound,
        certificate.outputs,
        certificate.circuit,
    )
