"""Language models measured: likelihoods, windows, prompts, options, exposure bias, the harness; and their commands."""
