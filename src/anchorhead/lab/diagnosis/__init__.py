"""Why an attention network is off, and what to change; `criteria.py` has the mathematics."""

from anchorhead.lab.diagnosis.by_kind import diagnose
from anchorhead.lab.diagnosis.diagnosis import KINDS, Diagnosis, Finding
from anchorhead.lab.diagnosis.files import diagnose_file

__all__ = ["KINDS", "Diagnosis", "Finding", "diagnose", "diagnose_file"]
