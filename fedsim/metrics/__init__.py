"""Scores of multi-label predictions, and what they need to be counted in parts."""

from fedsim.metrics.average_precision import average_precision
from fedsim.metrics.bootstrap import bootstrap_by_user
from fedsim.metrics.constant import constant_scores
from fedsim.metrics.statistics import ScoreStatistics
from fedsim.metrics.threshold import apple_macro_f1, card_f1, precision_recall_f1

__all__ = [
    "ScoreStatistics",
    "apple_macro_f1",
    "average_precision",
    "bootstrap_by_user",
    "card_f1",
    "constant_scores",
    "precision_recall_f1",
]
