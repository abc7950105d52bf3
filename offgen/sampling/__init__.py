"""How a token is chosen. `params` is pure; everything else needs torch and is imported by its own name."""
