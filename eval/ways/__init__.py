"""Ways to adapt a checkpoint: what is trained and what stays, at which rates, until when, and how it is kept."""
