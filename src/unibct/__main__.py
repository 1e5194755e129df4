"""``python -m unibct``."""

from unibct.cli import main

if __name__ == "__main__":
    main()
