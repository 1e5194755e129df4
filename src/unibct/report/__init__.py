"""What a person looks at: tables, curves and pictures, in the terminal and in HTML.

No number is computed here that ``evaluation`` or ``benchmark`` could give.
"""
