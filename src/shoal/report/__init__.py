"""Pages for people, made from data that is given: a report of runs, a statement for those who must sign a study off."""

from shoal.report.page import report_of
from shoal.report.registry import registry_record
from shoal.report.statement import statement_page

__all__ = ["registry_record", "report_of", "statement_page"]
