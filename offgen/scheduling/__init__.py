"""Decides which request computes what in each step. Standard library only."""

from offgen.scheduling.batch import Batch, BlockGrant, Chunk, Entry
from offgen.scheduling.config import SchedulerConfig
from offgen.scheduling.request import Ending, Request, RequestState
from offgen.scheduling.scheduler import Scheduler

__all__ = ["Batch", "BlockGrant", "Chunk", "Ending", "Entry", "Request", "RequestState", "Scheduler", "SchedulerConfig"]
