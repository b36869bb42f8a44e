"""What spark-submit is given to run: the command line, as `loadmanager` starts it."""

from loadmanager.cli import main

main()
