"""Spectra of design operators, one with a closed form."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Spectra of design operators, one with a closed form."""

    name = "contextual_eigenvalues"

    def get_data(self):
        """Name the problem and its settings."""
        return {"problem": "contextual risk", "kind": "eigenvalues"}
