"""From a target to a certified model: graph -> heads -> network -> certificate, one pass a file."""
