"""Named whole runs, one function each. Imported by file: judging a trial needs no torch, running one does."""
