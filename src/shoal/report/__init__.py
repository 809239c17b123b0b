"""HTML pages from given data: a report of runs, and a statement of a study to sign.

Commands and the coordinator call these functions. Pages load nothing and contain no script.
"""

from shoal.report.page import make_report
from shoal.report.registry import make_registry_record
from shoal.report.statement import make_statement_page

__all__ = ["make_registry_record", "make_report", "make_statement_page"]
