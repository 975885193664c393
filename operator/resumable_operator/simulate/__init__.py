"""A job's life under a fake clock: the real decisions and ledger, simulated machines and ranks.

Pure: no I/O and no clock of its own; chance comes in as streams of random numbers. ``job.simulate_job`` runs
one job, ``grid`` many of them, ``chart`` draws the result. ``rtj simulate`` is the only caller.
"""
