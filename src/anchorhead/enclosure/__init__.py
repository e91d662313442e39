"""What is certain of an expression: ranges and Taylor coefficients in ball arithmetic, kinks, singularities, tails."""
