"""From verdicts to gradients: samples, advantages, learning rate, mismatch (plain Python), batch and loss (torch)."""
