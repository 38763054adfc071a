"""``python -m fedsim``: the command line."""

from fedsim.cli import main

if __name__ == "__main__":
    main()
