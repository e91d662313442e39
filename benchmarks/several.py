"""Thirty functions of two to four variables from the test sets of optimisation, integration and finance.

Each is compiled at a tolerance relative to its size; printed are keys, layers, seconds, and every refusal.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import anchorhead as ah

UNIT = (0, 1)
# name: formula, domains, size, tolerance relative to it
OPTIMISATION = {
    "sphere": ("x**2 + y**2 + z**2", [(-5, 5)] * 3, 75, 1e-6),
    "rosenbrock": ("100*(y - x**2)**2 + (1 - x)**2", [(-2, 2), (-1, 3)], 2500, 1e-6),
    "rastrigin": ("20 + x**2 - 10*cos(2*pi*x) + y**2 - 10*cos(2*pi*y)", [(-5.12, 5.12)] * 2, 80, 1e-4),
    "himmelblau": ("(x**2 + y - 11)**2 + (x + y**2 - 7)**2", [(-5, 5)] * 2, 900, 1e-6),
    "booth": ("(x + 2*y - 7)**2 + (2*x + y - 5)**2", [(-10, 10)] * 2, 2600, 1e-6),
    "matyas": ("0.26*(x**2 + y**2) - 0.48*x*y", [(-10, 10)] * 2, 100, 1e-6),
    "beale": ("(1.5 - x + x*y)**2 + (2.25 - x + x*y**2)**2", [(-1, 1)] * 2, 30, 1e-5),
    "easom": ("-cos(x)*cos(y)*exp(-((x - pi)**2 + (y - pi)**2))", [(1, 5)] * 2, 1, 1e-4),
    "mccormick": ("sin(x + y) + (x - y)**2 - 1.5*x + 2.5*y + 1", [(-1.5, 4), (-3, 4)], 60, 1e-6),
    "three_hump_camel": ("2*x**2 - 1.05*x**4 + x**6/6 + x*y + y**2", [(-2, 2)] * 2, 10, 1e-5),
    "six_hump_camel": ("(4 - 2.1*x**2 + x**4/3)*x**2 + x*y + (4*y**2 - 4)*y**2", [(-2, 2), (-1, 1)], 6, 1e-5),
    "styblinski_tang": ("(x**4 - 16*x**2 + 5*x + y**4 - 16*y**2 + 5*y)/2", [(-5, 5)] * 2, 250, 1e-6),
    "griewank": ("1 + (x**2 + y**2)/4000 - cos(x)*cos(y/sqrt(2))", [(-10, 10)] * 2, 2, 1e-4),
    "levy": ("sin(pi*x)**2 + (x - 1)**2*(1 + 10*sin(pi*y)**2)", [(-1, 3)] * 2, 44, 1e-4),
    "schaffer": ("0.5 + (sin(x**2 - y**2)**2 - 0.5)/(1 + 0.001*(x**2 + y**2))**2", [(-2, 2)] * 2, 1, 1e-3),
    "michalewicz": ("-sin(x)*sin(x**2/pi)**4 - sin(y)*sin(2*y**2/pi)**4", [(0, 3)] * 2, 2, 1e-3),
    "branin": (
        "(y - 5.1/(4*pi**2)*x**2 + 5/pi*x - 6)**2 + 10*(1 - 1/(8*pi))*cos(x) + 10",
        [(-5, 10), (0, 15)],
        308,
        1e-5,
    ),
    "powell": ("(a + 10*b)**2 + 5*(c - d)**2 + (b - 2*c)**4 + 10*(a - d)**4", [(-1, 1)] * 4, 400, 1e-5),
    "ackley": (
        "-20*exp(-0.2*sqrt(0.5*(x**2 + y**2))) - exp(0.5*(cos(2*pi*x) + cos(2*pi*y))) + e + 20",
        [(-5, 5)] * 2,
        15,
        1e-3,
    ),
}
GENZ = {
    "oscillatory": ("cos(2*pi*0.3 + 5*x + 3*y + 2*z)", [UNIT] * 3, 1, 1e-6),
    "product_peak": ("1/((1/25 + (x - 0.4)**2)*(1/25 + (y - 0.6)**2))", [UNIT] * 2, 625, 1e-4),
    "corner_peak": ("(1 + 2*x + 3*y + z)**-4", [UNIT] * 3, 1, 1e-6),
    "gaussian": ("exp(-25*(x - 0.5)**2 - 16*(y - 0.3)**2)", [UNIT] * 2, 1, 1e-6),
    "continuous": ("exp(-5*abs(x - 0.4) - 3*abs(y - 0.6))", [UNIT] * 2, 1, 1e-5),
}
D1 = "((log(s) + 0.06*t)/(0.2*sqrt(t)))"
FINANCE = {
    "black_scholes": (
        f"s*(1 + erf({D1}/sqrt(2)))/2 - exp(-0.04*t)*(1 + erf(({D1} - 0.2*sqrt(t))/sqrt(2)))/2",
        {"s": (0.5, 1.5), "t": (0.5, 2)},
        1,
        1e-5,
    ),
    "bond": ("c*(1 - exp(-r*t))/r + exp(-r*t)", {"c": (0, 0.1), "r": (0.01, 0.1), "t": (1, 10)}, 2, 1e-5),
    "utility": ("(w**0.5*(1 - q) + v**0.5*q)**2", {"w": (1, 4), "v": (1, 4), "q": (0, 1)}, 4, 1e-5),
    "payoff": ("max(s - 1, 0) - 2*max(s - k, 0)", {"s": (0, 2), "k": (1, 1.5)}, 1, 1e-5),
    "svi": ("0.04 + 0.4*(-0.4*(k - m) + sqrt((k - m)**2 + 0.01))", {"k": (-1, 1), "m": (-0.2, 0.2)}, 1, 1e-6),
    "nelson_siegel": (
        "b + c*(1 - exp(-t/l))*l/t + d*((1 - exp(-t/l))*l/t - exp(-t/l))",
        {"b": (0, 0.1), "c": (-0.1, 0.1), "d": (-0.1, 0.1), "t": (0.5, 10), "l": (1, 3)},
        0.2,
        1e-4,
    ),
}
CASES = OPTIMISATION | GENZ | FINANCE


def main(tiny: bool = False, only: str = "") -> None:
    """Prints a line a function."""
    seconds, refused = [], 0
    for name, (formula, domain, scale, relative) in list(CASES.items())[: 2 if tiny else None]:
        if only not in name:
            continue
        start = time.process_time()
        try:
            model = ah.compile([formula] if isinstance(formula, str) else formula, domain, tol=relative * scale)
            said = f"{model.resources.keys} keys, {model.resources.layers} layers, {model.method}"
        except ah.AnchorheadError as refusal:
            refused += 1
            said = f"refused: {str(refusal)[:150]}"
        seconds.append(time.process_time() - start)
        print(f"  {name} to {relative * scale:.0e}: {said}, {seconds[-1]:.1f} s", flush=True)
    print(
        f"{len(seconds)} functions, {refused} refused; seconds median {median(seconds):.1f}, worst {max(seconds):.1f}"
    )


if __name__ == "__main__":
    main(only=sys.argv[1] if len(sys.argv) > 1 else "")
