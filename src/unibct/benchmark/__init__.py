"""Every method in every scenario over several seeds, and upgrade chains, as resumable jobs.

The numbers are kept here; tables and pages of them are made in ``report``.
"""
