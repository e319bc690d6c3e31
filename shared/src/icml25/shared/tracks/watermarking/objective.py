"""Two questions about watermarked text: does its message come back, and did its owner write it?"""

from icml25.shared.problems import ProblemObjective
from icml25.shared.protocols import watermark_forgery, watermark_message


class Objective(ProblemObjective):
    """Extraction and detection of a watermark against its cost, and the detection of forgeries."""

    name = "Watermarks"
    problems = {"message": watermark_message, "forgery": watermark_forgery}  # noqa: RUF012
