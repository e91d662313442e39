"""How far what exists is from a function: two functions on a domain, an implementation at all of its inputs."""
