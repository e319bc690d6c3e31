"""What the baselines of this track share."""
