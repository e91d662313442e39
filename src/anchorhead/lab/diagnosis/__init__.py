"""Why an attention network is off, and what to change; `criteria.py` has the mathematics."""

from anchorhead.lab.diagnosis.diagnosis import diagnose, diagnose_file
from anchorhead.lab.diagnosis.findings import KINDS, Diagnosis, Finding

__all__ = ["KINDS", "Diagnosis", "Finding", "diagnose", "diagnose_file"]
