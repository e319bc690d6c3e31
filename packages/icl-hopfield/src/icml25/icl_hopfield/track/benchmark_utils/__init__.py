"""What the baselines share."""
