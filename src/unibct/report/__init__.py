"""What a person looks at: tables, curves and pictures, in the terminal and in HTML.

The numbers come from ``evaluation`` and ``benchmark``; nothing is measured here.
"""
