"""The agent: PID 1 of a worker. It starts ranks, sees them end, and tells the operator.

Standard library only and Python 3.9, so that one file can be copied into any image that has Python.
"""
