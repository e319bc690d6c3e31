"""Evaluation procedures that several packages share: numpy in, floats out."""
