"""Where a run of many ranks and steps diverges first: from the results of its tasks.

A task is one step of one rank. ``summarize_task`` reduces its result to what the run needs, in the
process that compared it. ``find_inheritance`` says what a step may differ by because of the
step before: with that it is compared again. ``locate_run`` follows errors through collectives and
from step to step and gives the answer about the run.
"""

from .run import locate_run
from .steps import find_inheritance
from .task_summary import summarize_task

__all__ = ["find_inheritance", "locate_run", "summarize_task"]
