"""`python -m sharepod.cli`: the command without its script."""

from sharepod.cli.main import main

if __name__ == "__main__":
    main()
