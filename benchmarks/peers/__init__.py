"""One runner for each engine offgen is measured against; each runs in an environment of its own."""
