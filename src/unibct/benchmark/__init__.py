"""Every method in every scenario over several seeds, and upgrade chains, as resumable jobs.

This room runs the jobs and reads their numbers back. Tables and pages are made in ``report``.
"""
